"""Opens what prepare.py packs: a folder or a tar of images, its labels from folders or a list."""

from cfn_jax import places
from cfn_jax.data import folder, label_lists, listing, tar_source
from cfn_jax.data.record import SourceError


def open_source(source: str, *, labels: str = '', synsets: str = '') -> folder.NamedSource:
  """Opens a folder or a tar.

  Args:
    labels: a list of labels; '' for class folders, if every image lies in one.
    synsets: what the numbers in that list mean.

  Raises:
    SourceError: what is wrong, where, and what would be right.
  """
  if synsets and not labels:
    raise SourceError(f'--synsets={synsets}: it says what the numbers in --labels mean; give both')
  path = places.local(source)
  try:
    packed = path.is_file()
  except OSError as error:
    raise SourceError(f'cannot read {path}: {error.strerror or error}') from None
  opened: folder.NamedSource
  if packed:
    opened = tar_source.open_tar(path)
  else:
    found = listing.scan_images(path)
    opened = folder.labelled(path, found, folder.class_folders(found.names))
  if labels:
    _label(opened, source, labels, synsets)
  else:
    folder.warn_of_splits(path, opened.class_names)
  return opened


def _label(opened: folder.NamedSource, source: str, labels: str, synsets: str) -> None:
  """Sets the labels of a source that has none."""
  if opened.class_names:
    raise SourceError(
      f'--labels={labels}: the images of {source} have classes already, their folders, such as '
      f'{opened.class_names[0]}; give the folder of the images itself, or no --labels'
    )
  opened.relabel(
    *label_lists.read_labels(
      list(opened.names), places.local(labels), places.local(synsets) if synsets else None
    )
  )
