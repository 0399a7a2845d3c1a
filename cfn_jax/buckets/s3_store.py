"""Buckets of Amazon S3 and of its like, by Amazon's own client; every request is sent once."""

import contextlib
import pathlib
from collections.abc import Iterator

import boto3
import botocore.config
from botocore import exceptions

from cfn_jax import terminal
from cfn_jax.buckets import answers

DENIED = (400, 401, 403)  # S3 answers 400 to a token that has expired or says nothing
FAILED = (  # what is raised where a request or its answer did not come through
  exceptions.ConnectionError,
  exceptions.HTTPClientError,
  exceptions.FlexibleChecksumError,
  exceptions.IncompleteReadError,
  ConnectionError,
  TimeoutError,
)
AGAIN = (408, 409, 429, 500, 502, 503, 504)  # 409: two conditional writes at once


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
    condition = {} if version is None else {'IfMatch': version} if version else {'IfNoneMatch': '*'}
    with contextlib.ExitStack() as stack:
      body = stack.enter_context(data.open('rb')) if isinstance(data, pathlib.Path) else data
      stack.enter_context(_translated())
      answer = self._client.put_object(Bucket=self._bucket, Key=name, Body=body, **condition)
      return str(answer['ETag'])

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
    told = f'{code} {error.response.get("Error", {}).get("Code", "")}'
    if code == 404:
      raise answers.MissingError('there is no such object or bucket') from error
    if code == 412:
      raise answers.ChangedError('it has changed') from error
    if code in DENIED:
      raise answers.DeniedError(f'access is denied ({told})') from error
    kind = answers.PassingError if code in AGAIN else answers.BucketError
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
