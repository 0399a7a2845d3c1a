"""The list of files that could not be decoded, in the workdir: each once, with its reason."""

import logging
import pathlib

from cfn_jax.data import images, pipeline

FILE = 'bad_images.tsv'


class BadImages:
  """Lists the skipped records; call it with the number of each, any number of times.

  Args:
    reader: has the records' names and the reasons.
    host: each host reads other records, and has its own list.
  """

  def __init__(self, reader: pipeline.Reader, *, host: int = 0) -> None:
    self._reader = reader
    self._file = f'bad_images.host{host}.tsv' if host else FILE
    self._path: pathlib.Path | None = None
    self._seen: set[int] = set()
    self._listed: set[str] = set()

  def __len__(self) -> int:
    """Returns how many were skipped since the start."""
    return len(self._seen)

  def describe(self) -> str:
    """Returns the end of a sentence: how many were skipped, and where the list is; '' for none."""
    where = f', see {self._path}' if self._path else ''
    return f'; {len(self._seen):,} could not be decoded{where}' if self._seen else ''

  def open(self, workdir: pathlib.Path, of: str = '') -> None:
    """Sets the folder of the list, and reads the list of an earlier start.

    Args:
      of: begins the name, for a file that is not the folder's only content.
    """
    self._path = workdir / (f'{of}.{self._file}' if of else self._file)
    if self._path.exists():
      lines = self._path.read_text(encoding='ascii').splitlines()
      self._listed |= {line.partition('\t')[0] for line in lines}

  def __call__(self, index: int) -> None:
    """Adds a record to the list."""
    if index in self._seen:
      return
    self._seen.add(index)
    try:
      name, reason = self._reader.decode(index)[0].name, 'it decodes now'
    except images.BadImage as error:
      name, reason = error.name, error.reason
    name, reason = _escape(self._reader.locate(name)), _escape(reason)
    if name in self._listed:
      return
    self._listed.add(name)
    logging.warning('%s: %s (skipped; %d so far of its set)', name, reason, len(self._seen))
    if self._path is not None:
      with self._path.open('a', encoding='ascii') as file:
        file.write(f'{name}\t{reason}\n')


def _escape(text: str) -> str:
  """Writes what is not ASCII, and tabs and line ends, as escapes: names may hold any bytes."""
  return text.encode('unicode_escape', 'surrogatepass').decode('ascii')
