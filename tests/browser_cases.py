"""A browser without a window, driven over pipes by its own protocol: how it takes a page."""

import base64
import json
import os
import pathlib
import shutil
import subprocess
import tempfile
import time
from typing import Any

NAMES = ('chromium', 'chromium-browser', 'google-chrome', 'chrome', 'chrome-headless-shell')
PATIENCE_S = 60


def find() -> str:
  """Returns the path of a browser, '' where none is installed."""
  return next(filter(None, map(shutil.which, NAMES)), '')


class Browser:
  """One page of a browser; a context. `said` holds what it wrote on its console: (kind, text)."""

  def __enter__(self) -> 'Browser':
    self.said: list[tuple[str, str]] = []
    self._count, self._text = 0, b''
    self._profile = tempfile.TemporaryDirectory(ignore_cleanup_errors=True)
    theirs, self._write = os.pipe()
    self._read, their_write = os.pipe()

    # The browser reads its commands on 3, and answers on 4.
    self._process = subprocess.Popen(
      [
        *('bash', '-c', f'exec "$@" 3<&{theirs} 4>&{their_write}', '-', find(), '--headless'),
        *('--no-sandbox', '--disable-gpu', '--hide-scrollbars', '--remote-debugging-pipe'),
        f'--user-data-dir={self._profile.name}',
      ],
      pass_fds=(theirs, their_write),
      stdout=subprocess.DEVNULL,
      stderr=subprocess.DEVNULL,
    )
    os.close(theirs)
    os.close(their_write)
    self._session: dict[str, str] = {}
    target = self.ask('Target.createTarget', url='about:blank')['targetId']
    attached = self.ask('Target.attachToTarget', targetId=target, flatten=True)
    self._session = {'sessionId': attached['sessionId']}
    for domain in ('Page', 'Runtime', 'Log', 'Network'):
      self.ask(f'{domain}.enable')
    return self

  def __exit__(self, *_: object) -> None:
    self._session = {}
    try:
      self.ask('Browser.close')
      self._process.wait(PATIENCE_S)
    finally:
      self._process.kill()
      self._process.wait()
    os.close(self._read)
    os.close(self._write)
    self._profile.cleanup()

  def open(
    self, path: pathlib.Path, *, width: int, height: int = 900, scheme: str = 'light'
  ) -> None:
    """Opens a file in a window of some size, and waits until it is drawn."""
    self.said.clear()
    features = [{'name': 'prefers-color-scheme', 'value': scheme}]
    self.ask('Emulation.setEmulatedMedia', features=features)
    size = {'width': width, 'height': height, 'deviceScaleFactor': 1, 'mobile': False}
    self.ask('Emulation.setDeviceMetricsOverride', **size)
    self.ask('Page.navigate', url=path.resolve().as_uri())
    deadline = time.monotonic() + PATIENCE_S
    while (
      self.run('document.readyState') != 'complete' or self.run('location.protocol') == 'about:'
    ):
      assert time.monotonic() < deadline, 'the page is not loaded'
      time.sleep(0.05)
    self.run('new Promise((r) => requestAnimationFrame(() => setTimeout(r, 300)))')

  def run(self, script: str) -> Any:
    """Runs a script in the page, and returns its value once it is there."""
    asked = {'expression': script, 'awaitPromise': True, 'returnByValue': True}
    found = self.ask('Runtime.evaluate', **asked)
    assert 'exceptionDetails' not in found, found['exceptionDetails']
    return found['result'].get('value')

  def take_picture(self, path: pathlib.Path) -> None:
    """Writes the whole page as a PNG."""
    found = self.ask('Page.captureScreenshot', captureBeyondViewport=True)
    path.write_bytes(base64.b64decode(found['data']))

  def ask(self, method: str, **parameters: Any) -> dict[str, Any]:
    """Sends a command and returns its answer; events on the way are taken down."""
    self._count += 1
    message = {'id': self._count, 'method': method, 'params': parameters, **self._session}
    os.write(self._write, json.dumps(message).encode() + b'\0')
    while True:
      answer = self._receive()
      if answer.get('id') == self._count:
        assert 'error' not in answer, (method, answer)
        return answer['result']

  def _receive(self) -> dict[str, Any]:
    while b'\0' not in self._text:
      part = os.read(self._read, 1 << 20)
      assert part, 'the browser has ended'
      self._text += part
    text, _, self._text = self._text.partition(b'\0')
    message = json.loads(text)
    self._note(message)
    return message

  def _note(self, message: dict[str, Any]) -> None:
    method, found = message.get('method'), message.get('params', {})
    if method == 'Runtime.consoleAPICalled':
      text = ' '.join(str(each.get('value', each.get('description'))) for each in found['args'])
      self.said.append((found['type'], text))
    elif method == 'Runtime.exceptionThrown':
      self.said.append(('error', str(found['exceptionDetails'])))
    elif method == 'Log.entryAdded':
      self.said.append((found['entry']['level'], found['entry']['text']))
    elif method == 'Network.requestWillBeSent':
      self.said.append(('request', found['request']['url'][:100]))
