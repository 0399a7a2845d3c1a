"""Checks, before any training, what two splits of labelled data must have in common."""

from cfn_jax.data.record import Source, SourceError

NAMED = 10  # items named in an error


def check_held_out(training: Source, testing: Source) -> None:
  """Raises SourceError if no image is left for the test."""
  if not len(testing):
    raise SourceError(
      f'none of the {len(training):,} images is held out for the test: set data.val_root, '
      'data.val_split or data.val_fraction'
    )


def check_same_classes(
  training: tuple[str, ...], testing: tuple[str, ...], *, allow_missing: bool | None = None
) -> None:
  """Raises SourceError if the class lists of two splits differ, with the first differences.

  Args:
    allow_missing: the test may lack classes of the training (data.allow_empty_classes); None: there
      is no such field here.
  """
  if training == testing or (allow_missing and set(testing) <= set(training)):
    return
  only = [
    (where, [name for name in ours if name not in theirs])
    for where, ours, theirs in (('training', training, testing), ('test', testing, training))
  ]
  parts = [
    f'{len(names)} only in {where} ({", ".join(names[:NAMED])})' for where, names in only if names
  ]
  lacking = allow_missing is False and set(testing) <= set(training)
  raise SourceError(
    f'the classes differ: {len(training)} in training, {len(testing)} in the test, '
    + ('; '.join(parts) or 'in another order')
    + ('; data.allow_empty_classes=True scores the others' if lacking else '')
  )
