"""Decodes all images of a data set once, so that a bad one is found before a run begins."""

import concurrent.futures
import os

from cfn_jax import terminal
from cfn_jax.data import images, pipeline
from cfn_jax.data.record import SourceError

NAMED = 5  # images named in an error


def find(reader: pipeline.Reader) -> dict[int, str]:
  """Returns the records that cannot be decoded, with their names and reasons."""

  def find_fault(index: int) -> str:
    try:
      reader.decode(index)
    except images.BadImage as error:
      return f'{reader.locate(error.name)}: {error.reason}'
    return ''

  count = len(reader.source)
  with concurrent.futures.ThreadPoolExecutor(os.cpu_count()) as pool:
    found = pool.map(find_fault, range(count))
    bar = terminal.make_bar(found, total=count, desc='images', unit='image', delay=3)
    return {index: fault for index, fault in enumerate(bar) if fault}


def check(reader: pipeline.Reader) -> None:
  """Raises SourceError that names records that cannot be decoded."""
  if faults := [*find(reader).values()]:
    more = f' (and {len(faults) - NAMED:,} more)' if len(faults) > NAMED else ''
    raise SourceError(
      f'{len(faults):,} of {len(reader.source):,} images cannot be decoded: '
      f'{"; ".join(faults[:NAMED])}{more}; mend them, or take them off the list'
    )
