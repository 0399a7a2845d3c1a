"""Buckets of Amazon S3 and of its like, by Amazon's own client; every request is sent once."""

import contextlib
import pathlib
from collections.abc import Iterator

import boto3
import boto3.exceptions
import boto3.s3.transfer
import botocore.config
from botocore import exceptions

from cfn_jax import terminal
from cfn_jax.buckets import answers

# Codes and words of answers. A token that has expired is refused by 400, without a word to HEAD.
DENIED = (401, 403, '400', 'ExpiredToken', 'InvalidToken', 'TokenRefreshRequired')
AGAIN = (
  *(408, 409, 429, 500, 502, 503, 504),  # 409: two conditional writes at once
  *('RequestTimeout', 'InternalError', 'SlowDown', 'ServiceUnavailable'),
  *('Throttling', 'ThrottlingException', 'RequestThrottled', 'RequestLimitExceeded'),
)
FAILED = (  # what is raised where a request or its answer did not come through
  exceptions.ConnectionError,
  exceptions.HTTPClientError,
  exceptions.FlexibleChecksumError,
  exceptions.IncompleteReadError,
  exceptions.MetadataRetrievalError,
  exceptions.CredentialRetrievalError,
  boto3.exceptions.RetriesExceededError,
  ConnectionError,
  TimeoutError,
)
# How larger files are sent: in parts, one after the other, as several files are sent at once.
PARTS = boto3.s3.transfer.TransferConfig(
  multipart_threshold=2**30, multipart_chunksize=2**27, use_threads=False
)


class S3Store:
  """Implements `answers.Store`. AWS_ENDPOINT_URL names another server than Amazon's."""

  def __init__(self, bucket: str) -> None:
    self._bucket = bucket
    self.set_timeout(answers.TIMEOUT)

  def set_timeout(self, timeout: tuple[float, float]) -> None:
    """Implements `answers.Store`."""
    options = botocore.config.Config(
      connect_timeout=timeout[0],
      read_timeout=timeout[1],
      retries={'total_max_attempts': 1},
      max_pool_connections=16,
    )
    with _translated():
      self._client = boto3.Session().client('s3', config=options)

  def find(self, prefix: str, limit: int | None) -> list[answers.Found]:
    """Implements `answers.Store`."""
    with _translated():
      pages = self._client.get_paginator('list_objects_v2').paginate(
        Bucket=self._bucket, Prefix=prefix, PaginationConfig={'MaxItems': limit}
      )
      return [
        answers.Found(each['Key'], each['Size'], each['LastModified'].timestamp())
        for page in pages
        for each in page.get('Contents', ())
      ]

  def read(self, name: str) -> tuple[bytes, str]:
    """Implements `answers.Store`."""
    with _translated():
      answer = self._client.get_object(Bucket=self._bucket, Key=name)
      return answer['Body'].read(), answer['ETag']

  def download(self, name: str, path: pathlib.Path) -> None:
    """Implements `answers.Store`."""
    with _translated():
      self._client.download_file(self._bucket, name, str(path))

  def write(self, name: str, data: bytes | pathlib.Path, version: str | None) -> str:
    """Implements `answers.Store`."""
    if version is None and isinstance(data, pathlib.Path):
      return self._upload(name, data)
    condition = {} if version is None else {'IfMatch': version} if version else {'IfNoneMatch': '*'}
    with contextlib.ExitStack() as stack:
      body = stack.enter_context(data.open('rb')) if isinstance(data, pathlib.Path) else data
      stack.enter_context(_translated())
      try:
        answer = self._client.put_object(Bucket=self._bucket, Key=name, Body=body, **condition)
      except self._client.exceptions.NoSuchKey as error:  # that version was deleted
        raise answers.ChangedError('it has changed') from error
      return str(answer['ETag'])

  def _upload(self, name: str, path: pathlib.Path) -> str:
    """Writes a file of any size: a single request holds 5 GB at most."""
    with path.open('rb') as file, _translated():
      self._client.upload_fileobj(file, self._bucket, name, Config=PARTS)
      return str(self._client.head_object(Bucket=self._bucket, Key=name)['ETag'])

  def delete(self, name: str) -> None:
    """Implements `answers.Store`."""
    with _translated():
      self._client.delete_object(Bucket=self._bucket, Key=name)


@contextlib.contextmanager
def _translated() -> Iterator[None]:
  """Raises what the libraries raise as one of our few kinds."""
  try:
    yield
  except exceptions.ClientError as error:
    code = int(error.response.get('ResponseMetadata', {}).get('HTTPStatusCode', 0))
    word = str(error.response.get('Error', {}).get('Code', ''))
    told = f'{code} {word}'
    if code == 404:
      raise answers.MissingError('there is no such object or bucket') from error
    if code == 412:
      raise answers.ChangedError('it has changed') from error
    if code in DENIED or word in DENIED:
      raise answers.DeniedError(f'access is denied ({told})') from error
    passing = code in AGAIN or word in AGAIN
    kind = answers.PassingError if passing else answers.BucketError
    raise kind(f'the server answers {told}') from error
  except (exceptions.NoCredentialsError, exceptions.PartialCredentialsError) as error:
    raise answers.DeniedError(
      f'there are no credentials ({terminal.first_line(error)}): run `aws configure`, or set '
      'AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY'
    ) from error
  except FAILED as error:
    told = terminal.first_line(error)[:160]
    raise answers.PassingError(f'the server cannot be reached ({told})') from error
  except exceptions.BotoCoreError as error:
    raise answers.BucketError(terminal.first_line(error)[:160]) from error
