"""Writes the features of a layer for a folder of images: one vector per image, in one file.

    python -m cfn_jax.features --weights=runs/cfn --images=photos --layer=pool5 --out=photos.npz
    python -m cfn_jax.features --weights=runs/photos --images=photos --layer=conv4 --view=112 \
        --resize-px=128 --stride=2 --out=photos.parquet

An .npz holds the arrays `name`, `vector` and, if all images lie in class folders, `label`. A
.parquet file (pip install -e '.[parquet]') has them as columns. Images that cannot be decoded are
listed beside it, in NAME.bad_images.tsv. Views and pooling are those of nearest neighbours: the
default of an option is the field of configs/knn.py in brackets. See docs/retrieval.md.
"""

from cfn_jax import environment  # noqa: F401  (before JAX)

# isort: split
from cfn_jax import arguments, command, idle, places, terminal
from cfn_jax.data import views
from cfn_jax.evaluation.frozen import features, own_features, pooling
from cfn_jax.training import devices, stopping

# The field of configs/knn.py that each option sets.
FIELDS = {
  'weights': 'weights',
  'step': 'weights_step',
  'collection': 'weights_collection',
  'dtype': 'features.dtype',
  'pooling': 'features.pooling',
  'dimensions': 'features.dimensions',
  'view': 'views.view_px',
  'resize_px': 'views.resize_px',
  'resize': 'views.resize',
  'stride': 'model.stride',
  'batch': 'eval_batch_size',
}


@terminal.interruptible()
@terminal.short_errors()
def main(argv: list[str] | None = None) -> None:
  """Runs the command."""
  parser = arguments.Parser('cfn_jax.features', __doc__)
  add = parser.add_argument
  add(
    '--weights',
    action='source',
    required=True,
    help="a workdir, a step, a file of weights, or 'random'",
  )
  add('--images', action='place', required=True, help='folder of images, read with its folders')
  add('--out', action='place', required=True, help='FILE.npz or FILE.parquet')
  add('--layer', default='pool5', choices=features.LAYERS, help='default pool5')
  add('--step', help="of a workdir: 'latest', 'best' or a number [weights_step]")
  add('--collection', choices=('params', 'ema'), help='of a checkpoint [weights_collection]')
  add('--dtype', choices=features.DTYPES, help='of the vectors [features.dtype]')
  add('--pooling', choices=pooling.KINDS, help='of the maps [features.pooling]')
  add('--dimensions', type=int, help='most values of a pooled map [features.dimensions]')
  add('--view', type=int, help='side of what the network sees [views.view_px]')
  add('--resize-px', type=int, help='what images are resized to before [views.resize_px]')
  add('--resize', choices=views.RESIZES, help='how [views.resize]')
  add('--stride', type=int, help='of conv1 [model.stride]')
  add('--batch', type=int, help='images at once; changes no vector [eval_batch_size]')
  flags = parser.parse(argv)
  command.quiet_libraries()
  config = command.load_config('knn')
  given = {
    field: getattr(flags, name)
    for name, field in FIELDS.items()
    if getattr(flags, name) is not None
  }
  config.update_from_flattened_dict({**given, 'layers': (flags.layer,)})
  idle.check(config, given)
  out = places.resolve(flags.out, '--out')
  images = places.local(flags.images, '--images')
  places.make_folder(out.parent, '--out')
  devices.check_platform()
  with stopping.ending():
    told = own_features.write(config, images, out)
  terminal.answer(told)


if __name__ == '__main__':
  main()
