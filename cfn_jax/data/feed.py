"""The batches of one data set for a task: training steps and evaluation passes.

Pretraining tasks and evaluations use the same feed. It combines a reader, a transform and a way of
loading; pipeline.py makes the batches. Bad images are listed in the workdir once it is known.
"""

import dataclasses
import functools
from collections.abc import Generator

import ml_collections

from cfn_jax.data import bad_images, pipeline, sources

# Limits of the numbers that data and feeds read and nothing else checks.
LIMITS = {
  'seed': (0, 2**63 - 1),
  'eval_batch_size': (1, 2**20),
  'data.val_fraction': (0, 1),
  'data.val_max_images': (0, 2**62),
  'data.crops_per_photograph': (1, 10**7),
  'data.val_crops_per_photograph': (1, 10**7),
  'data.num_workers': (0, 1024),
}


@dataclasses.dataclass(frozen=True)
class Feed:
  """One data set with the transform of its images.

  Attributes:
    group: number of consecutive training steps that share the decoded images of a batch.
    limit: number of images of an evaluation pass, a fixed random subset; 0: all.
  """

  reader: pipeline.Reader
  transform: pipeline.Transform
  loading: pipeline.Loading
  batch_size: int
  group: int = 1
  limit: int = 0

  @functools.cached_property
  def bad(self) -> bad_images.BadImages:
    """Returns the list of images that could not be decoded; open it with the workdir."""
    return bad_images.BadImages(self.reader, host=self.loading.host)

  def train(self, start: int, stop: int) -> Generator[pipeline.Batch, None, None]:
    """Yields this host's rows of the batches of steps `start` .. `stop - 1`."""
    return pipeline.make_training_batches(
      self.reader,
      self.transform,
      batch_size=self.batch_size,
      start_step=start,
      stop_step=stop,
      group=self.group,
      loading=self.loading,
      on_bad=self.bad,
    )

  def evaluate(self, first: int = 0) -> Generator[pipeline.Batch, None, None]:
    """Yields the batches of one pass, from its `first` image on, each with a `mask`."""
    return pipeline.make_evaluation_batches(
      self.reader,
      self.transform,
      batch_size=self.batch_size,
      limit=self.limit,
      first=first,
      loading=self.loading,
      on_bad=self.bad,
    )

  def names(self, step: int) -> list[str]:
    """Returns the names of the records in a training step's batch, for messages."""
    first = step // self.group * self.batch_size
    return self.reader.names(range(first, first + self.batch_size))


def open_readers(
  config: ml_collections.ConfigDict, *, min_side_px: int, evaluated: bool = True
) -> tuple[pipeline.Reader, pipeline.Reader]:
  """Opens the images of a pretraining run: those of training and those held out.

  Args:
    min_side_px: see `pipeline.Reader`; the decoder may halve a larger photograph.
    evaluated: some images must be held out.

  Raises:
    SourceError: with the fault in the data, and the remedy.
  """
  training, validation = sources.open_config(config.data)
  if evaluated and not len(validation):
    raise sources.SourceError(
      f'none of the {len(training)} images is held out for validation: name a second folder as '
      f'data.val_root, or raise data.val_fraction above {config.data.val_fraction}'
    )
  read = functools.partial(
    pipeline.Reader,
    seed=config.seed,
    min_side_px=min_side_px,
    on_bad_image=config.data.on_bad_image,
  )
  return read(training), read(validation)


def make_loading(config: ml_collections.ConfigDict) -> pipeline.Loading:
  """Reads how batches are loaded, and this host's share of their rows."""
  import jax  # not at import: loader processes import this room

  return pipeline.Loading(
    num_workers=config.data.num_workers,
    num_threads=config.data.num_threads,
    read_ahead_batches=config.data.read_ahead_batches,
    host=jax.process_index(),
    hosts=jax.process_count(),
  )
