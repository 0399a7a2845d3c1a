"""Buckets of Google Cloud Storage, by Google's own client; every request is sent once."""

import contextlib
import os
import pathlib
from collections.abc import Iterator

# The client would ask for a bucket's description too, which not everyone may read.
os.environ.setdefault('DISABLE_GCS_PYTHON_CLIENT_OTEL_BUCKET_METADATA', 'true')
# A machine without credentials that is none of Google's is known as such within seconds.
os.environ.setdefault('GCE_METADATA_TIMEOUT', '1')
os.environ.setdefault('GCE_METADATA_DETECT_RETRIES', '2')

# isort: split
import google.auth.exceptions
import requests
from google.api_core import exceptions
from google.cloud import storage
from google.cloud.storage import exceptions as transfers

from cfn_jax import terminal
from cfn_jax.buckets import answers

AGAIN = (408, 429, 500, 502, 503, 504)  # codes after which a request may be repeated


class GoogleStore:
  """Implements `answers.Store`. STORAGE_EMULATOR_HOST names another server than Google's."""

  def __init__(self, bucket: str) -> None:
    self._timeout = answers.TIMEOUT
    with _translated():
      # No request here names a project, but the client wants one.
      project = os.environ.get('GOOGLE_CLOUD_PROJECT') or 'none'
      self._client = storage.Client(project=project)
      self._bucket = self._client.bucket(bucket)

  def set_timeout(self, timeout: tuple[float, float]) -> None:
    """Implements `answers.Store`."""
    self._timeout = timeout

  def find(self, prefix: str, limit: int | None) -> list[answers.Found]:
    """Implements `answers.Store`."""
    with _translated():
      listed = self._client.list_blobs(
        self._bucket,
        prefix=prefix,
        max_results=limit,
        fields='items(name,size,updated),nextPageToken',
        retry=None,
        timeout=self._timeout,
      )
      return [answers.Found(blob.name, int(blob.size), blob.updated.timestamp()) for blob in listed]

  def read(self, name: str) -> tuple[bytes, str]:
    """Implements `answers.Store`."""
    with _translated():
      blob = self._bucket.blob(name)
      blob.reload(retry=None, timeout=self._timeout)
      version = blob.generation
      options = {'retry': None, 'timeout': self._timeout, 'if_generation_match': version}
      try:
        return blob.download_as_bytes(**options), str(version)
      except exceptions.NotFound as error:  # this version has gone since
        raise answers.ChangedError('it has changed') from error

  def download(self, name: str, path: pathlib.Path) -> None:
    """Implements `answers.Store`."""
    with _translated():
      self._bucket.blob(name).download_to_filename(str(path), retry=None, timeout=self._timeout)

  def write(self, name: str, data: bytes | pathlib.Path, version: str | None) -> str:
    """Implements `answers.Store`."""
    with _translated():
      blob = self._bucket.blob(name)
      match = None if version is None else int(version or 0)
      options = {'retry': None, 'timeout': self._timeout, 'if_generation_match': match}
      if isinstance(data, pathlib.Path):
        blob.upload_from_filename(str(data), **options)
      else:
        blob.upload_from_string(data, 'application/octet-stream', **options)
      return str(blob.generation)

  def delete(self, name: str) -> None:
    """Implements `answers.Store`."""
    with _translated():
      self._bucket.blob(name).delete(retry=None, timeout=self._timeout)


@contextlib.contextmanager
def _translated() -> Iterator[None]:
  """Raises what the libraries raise as one of our few kinds."""
  try:
    yield
  except exceptions.NotFound as error:
    raise answers.MissingError('there is no such object or bucket') from error
  except exceptions.PreconditionFailed as error:
    raise answers.ChangedError('it has changed') from error
  except (exceptions.Unauthorized, exceptions.Forbidden) as error:
    raise answers.DeniedError(f'access is denied ({_shorten(error)})') from error
  except exceptions.GoogleAPICallError as error:
    kind = answers.PassingError if error.code in AGAIN else answers.BucketError
    pays = 'requester pays' in str(error.message).lower()
    hint = ': set GOOGLE_CLOUD_QUOTA_PROJECT to the project that pays' if pays else ''
    raise kind(f'the server answers {_shorten(error)}{hint}') from error
  except google.auth.exceptions.DefaultCredentialsError as error:
    raise answers.DeniedError(
      f'there are no credentials ({_shorten(error)}): run `gcloud auth application-default login`, '
      'or set GOOGLE_APPLICATION_CREDENTIALS'
    ) from error
  except google.auth.exceptions.GoogleAuthError as error:
    transport = google.auth.exceptions.TransportError  # which the refresh of credentials wraps
    if error.retryable or isinstance(error, transport) or isinstance(error.__cause__, transport):
      raise answers.PassingError(f'credentials cannot be fetched ({_shorten(error)})') from error
    raise answers.DeniedError(f'the credentials are refused ({_shorten(error)})') from error
  except (requests.RequestException, ConnectionError, TimeoutError) as error:
    raise answers.PassingError(f'the server cannot be reached ({_shorten(error)})') from error
  except (transfers.InvalidResponse, transfers.DataCorruption) as error:
    raise answers.PassingError(f'what came is not whole ({_shorten(error)})') from error


def _shorten(error: BaseException) -> str:
  """Returns what a library says in a few words: without addresses of requests and answers."""
  if isinstance(error, exceptions.GoogleAPICallError):
    words = str(error.message).rpartition('prettyPrint=false: ')[2].rpartition('alt=media: ')[2]
    return f'{error.code} {words}'[:160]
  if isinstance(error, requests.ConnectionError) and error.args:
    error = getattr(error.args[0], 'reason', error)  # without the address of the request
  return terminal.first_line(error)[:160]
