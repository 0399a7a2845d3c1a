"""A bucket for tests: Google's emulator on a free port of 127.0.0.1, behind a proxy that fails.

The proxy passes requests on, and answers itself what a test asks for: 503, 403, a dropped
connection. It also keeps what the emulator ignores, the condition that an object is absent or still
of a generation.
"""

import contextlib
import http.client
import http.server
import json
import os
import re
import socket
import threading
import time
import urllib.parse
from unittest import mock

import pytest
import test_training_checkpoint as steps

from cfn_jax.buckets import lease
from cfn_jax.training import mirror

pytest.importorskip('google.cloud.storage', reason="needs the extra 'gcs'")
server = pytest.importorskip('gcp_storage_emulator.server', reason='needs gcp-storage-emulator')

BUCKET = 'bucket'
NAME = 'runs/ein Lauf mit ü'
ADDRESS = f'gs://{BUCKET}/{NAME}'


class Proxy(http.server.ThreadingHTTPServer):
  """Passes requests on to the emulator.

  Attributes:
    faults: functions from (method, path with query, and name where one is written) to what is
      done: None: pass on; 503: that status; 0.1: a pause of that length in seconds; 'drop': the
      connection is closed; 'drop after': it is, once the request was served.
    seen: methods and paths of all requests.
  """

  daemon_threads = True

  def __init__(self, port):
    super().__init__(('127.0.0.1', 0), _Handler)
    self.port, self.faults, self.seen = port, [], []
    self.generations, self.mutex = {}, threading.Lock()

  def handle_error(self, request, client_address):
    pass  # clients that were killed

  @property
  def address(self):
    return f'http://127.0.0.1:{self.server_address[1]}'


class _Handler(http.server.BaseHTTPRequestHandler):
  protocol_version = 'HTTP/1.1'
  disable_nagle_algorithm = True

  def log_message(self, *_):
    pass

  def serve(self):
    body = self.read_body()
    proxy = self.server
    proxy.seen.append((self.command, self.path))
    asked = f'{self.path}&{self.find_name(body)}' if self.command == 'POST' else self.path
    fault = next((f for fault in proxy.faults if (f := fault(self.command, asked))), None)
    if isinstance(fault, float):
      time.sleep(fault)
    if fault == 'drop':
      self.connection.shutdown(socket.SHUT_RDWR)
      self.close_connection = True
      return
    if isinstance(fault, int):
      self.answer(fault, json.dumps({'error': {'code': fault, 'message': 'asked for'}}).encode())
      return
    with proxy.mutex:
      refused = self.find_unmet(body)
      if not refused:
        answer = self.pass_on(body)
    if refused:
      self.answer(412, b'{"error": {"code": 412, "message": "conditionNotMet"}}')
    elif fault == 'drop after':
      self.connection.shutdown(socket.SHUT_RDWR)
      self.close_connection = True
    else:
      self.answer(answer.status, answer.body, answer.getheaders())

  do_HEAD = do_GET = do_POST = do_PUT = do_DELETE = do_PATCH = serve  # noqa: N815

  def read_body(self):
    if self.headers.get('Transfer-Encoding') == 'chunked':
      parts = []
      while size := int(self.rfile.readline(), 16):
        parts.append(self.rfile.read(size))
        self.rfile.readline()
      self.rfile.readline()
      return b''.join(parts)
    return self.rfile.read(int(self.headers.get('Content-Length') or 0))

  def find_unmet(self, body):
    """Tells whether the request's condition on the generation is not met."""
    query = urllib.parse.parse_qs(urllib.parse.urlsplit(self.path).query)
    wanted = query.get('ifGenerationMatch')
    if not wanted or self.command != 'POST':
      return False
    return wanted[0] != self.find_generation(self.find_name(body))

  def find_name(self, body):
    """Returns the name of the object that a POST writes; '' where it says none."""
    query = urllib.parse.parse_qs(urllib.parse.urlsplit(self.path).query)
    if 'name' in query:
      return query['name'][0]
    found = re.search(rb'"name": ?("[^"]*")', body)
    return json.loads(found[1]) if found else ''

  def find_generation(self, name):
    """Returns the generation of an object that is there, '0' for none."""
    upstream = http.client.HTTPConnection('127.0.0.1', self.server.port)
    upstream.request('GET', f'/storage/v1/b/{BUCKET}/o/{urllib.parse.quote(name, safe="")}')
    answer = upstream.getresponse()
    found = answer.read()
    upstream.close()
    return str(json.loads(found)['generation']) if answer.status == 200 else '0'

  def pass_on(self, body):
    upstream = http.client.HTTPConnection('127.0.0.1', self.server.port)
    headers = {k: v for k, v in self.headers.items() if k.lower() != 'transfer-encoding'}
    headers['Content-Length'] = str(len(body))
    upstream.request(self.command, self.path, body=body, headers=headers)
    answer = upstream.getresponse()
    answer.body = answer.read()
    upstream.close()
    return answer

  def answer(self, status, body, headers=()):
    self.send_response(status)
    for name, value in headers:
      if name.lower() not in (
        'content-length',
        'transfer-encoding',
        'connection',
        'date',
        'server',
      ):
        self.send_header(name, value)
    head = {name.lower(): value for name, value in headers} if self.command == 'HEAD' else {}
    self.send_header('Content-Length', head.get('content-length', str(len(body))))
    self.end_headers()
    if self.command != 'HEAD':
      self.wfile.write(body)


@contextlib.contextmanager
def serving():
  """Starts an emulator with one bucket and its proxy; names that to the client, and yields it."""
  with contextlib.closing(socket.socket()) as free:
    free.bind(('127.0.0.1', 0))
    port = free.getsockname()[1]
  emulator = server.create_server('127.0.0.1', port, in_memory=True, default_bucket=BUCKET)
  emulator.start()
  proxy = Proxy(port)
  threading.Thread(target=proxy.serve_forever, daemon=True).start()
  with mock.patch.dict(os.environ, {'STORAGE_EMULATOR_HOST': proxy.address}):
    try:
      yield proxy
    finally:
      proxy.shutdown()
      proxy.server_close()
      emulator.stop()


@contextlib.contextmanager
def serving_s3():
  """Starts moto's server with one bucket; names that to Amazon's client, and yields one."""
  boto3 = pytest.importorskip('boto3', reason="needs the extra 's3'")
  moto = pytest.importorskip('moto.server', reason="needs moto's server")
  emulator = moto.ThreadedMotoServer('127.0.0.1', port=0, verbose=False)
  emulator.start()
  host, port = emulator.get_host_and_port()
  named = {
    'AWS_ENDPOINT_URL': f'http://{host}:{port}',
    'AWS_ACCESS_KEY_ID': 'test',
    'AWS_SECRET_ACCESS_KEY': 'test',
    'AWS_DEFAULT_REGION': 'us-east-1',
  }
  with mock.patch.dict(os.environ, named):
    client = boto3.client('s3')
    client.create_bucket(Bucket=BUCKET)
    yield client
  emulator.stop()


@contextlib.contextmanager
def before_s3():
  """Starts a proxy before the server that is named to Amazon's client; names and yields it."""
  proxy = Proxy(int(os.environ['AWS_ENDPOINT_URL'].rpartition(':')[2]))
  threading.Thread(target=proxy.serve_forever, daemon=True).start()
  with mock.patch.dict(os.environ, {'AWS_ENDPOINT_URL': proxy.address}):
    yield proxy
  proxy.shutdown()
  proxy.server_close()


class Bucket:
  """The bucket behind a proxy, by Google's own client and past all faults."""

  def __init__(self, proxy):
    from google.auth import credentials
    from google.cloud import storage

    self._port = proxy.port
    self._client = storage.Client(
      project='test',
      credentials=credentials.AnonymousCredentials(),
      client_options={'api_endpoint': f'http://127.0.0.1:{proxy.port}'},
    )
    self._bucket = self._client.bucket(BUCKET)

  def names(self, prefix=''):
    """Returns the names of all objects below a prefix, without it."""
    return [
      each.name.removeprefix(prefix) for each in self._client.list_blobs(BUCKET, prefix=prefix)
    ]

  def read(self, name):
    return self._bucket.blob(name).download_as_bytes()

  def download(self, prefix, folder):
    """Copies the objects below a prefix into a folder."""
    for name in self.names(prefix):
      (folder / name).parent.mkdir(parents=True, exist_ok=True)
      (folder / name).write_bytes(self.read(f'{prefix}{name}'))

  def write(self, name, data=b'x'):
    self._bucket.blob(name).upload_from_string(data)

  def clear(self):
    """Deletes all objects at once."""
    upstream = http.client.HTTPConnection('127.0.0.1', self._port)
    upstream.request('GET', '/wipe?keep-buckets=true')
    assert upstream.getresponse().status == 200
    upstream.close()
    return self

  def delete(self, *names):
    for name in names:
      self._bucket.blob(name).delete()


class S3Bucket(Bucket):
  """The same by Amazon's own client."""

  def __init__(self, client):
    self._client = client

  def names(self, prefix=''):
    pages = self._client.get_paginator('list_objects_v2').paginate(Bucket=BUCKET, Prefix=prefix)
    return [each['Key'].removeprefix(prefix) for page in pages for each in page.get('Contents', ())]

  def read(self, name):
    return self._client.get_object(Bucket=BUCKET, Key=name)['Body'].read()


def hurry(monkeypatch):
  """Has locks be renewed and watched in parts of a second."""
  for name, seconds in (
    ('RENEW_SECONDS', 0.2),
    ('WATCH_SECONDS', 1.0),
    ('TRUSTED_SECONDS', 0.7),
    ('PAUSE', 0.1),
  ):
    monkeypatch.setattr(lease, name, seconds)


@contextlib.contextmanager
def opened(address=ADDRESS):
  with mirror.opened(mirror.resolve(address, '--workdir')) as workdir:
    yield workdir


def save(*numbers, **keep):
  with opened() as workdir:
    steps.save_all(workdir, numbers, **keep)


def resume():
  with opened() as workdir:
    return steps.resume(workdir)


@contextlib.contextmanager
def failing(proxy, *faults):
  """Has the proxy fail as asked, see `Proxy.faults`."""
  proxy.faults.extend(faults)
  try:
    yield
  finally:
    proxy.faults.clear()


unquote = urllib.parse.unquote_plus


def answer(what, method='', part='', times=1, after=0):
  """Makes a fault: `what`, a few times, for requests of a method whose path holds a part.

  Args:
    after: how many such requests are served before.
  """
  left = [after + times]

  def fault(asked, path):
    if method not in ('', asked) or part not in unquote(path) or not left[0]:
      return None
    left[0] -= 1
    return what if left[0] < times else None

  return fault
