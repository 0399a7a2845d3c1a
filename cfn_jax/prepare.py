"""Resizes images once and packs them into ArrayRecord shards for fast training.

    python -m cfn_jax.prepare --source=~/photos --out=~/photos_256
    python -m cfn_jax.prepare --source=ILSVRC2012_img_train.tar --out=imagenet_256 --short-side=256
    python -m cfn_jax.prepare proposals --help  # boxes for detection

`--source` may be a folder or a tar file (a tar of tars too). Images without class folders take
their classes from `--labels`; see docs/data.md. Then train with
`--config.data.source=records --config.data.root=DIR`, where DIR is the folder of `--out`.
"""

import signal
import sys

import numpy as np

from cfn_jax import arguments, terminal
from cfn_jax.data import bucket_records, listing, prepare, prepare_proposals

# The number of skipped files that are printed at the end; `index.json` lists them all.
_SHOWN = 5

_PROPOSALS = """Finds boxes where objects may be in all images, and writes them as one file.

    python -m cfn_jax.prepare proposals --method=segments --root=VOCdevkit/VOC2007 \\
        --split=trainval --out=voc07_trainval.npz
    python -m cfn_jax.prepare proposals --method=grid --images=DIR --out=boxes.npz

`segments` is a selective search (needs the extra `proposals`), `grid` a grid of windows. Detection
takes the file as its proposals; see docs/data.md.
"""


@terminal.short_errors()
def main(argv: list[str] | None = None) -> None:
  """Runs the command."""
  argv = list(sys.argv[1:] if argv is None else argv)
  proposals = argv[:1] == ['proposals']
  try:
    (_prepare_proposals if proposals else _prepare_images)(argv[proposals:])
  except KeyboardInterrupt:
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # a second one would only disturb the end
    part = 'part' if proposals else 'shard'
    terminal.say(f'prepare: interrupted; the same command resumes with the next {part}')
    sys.exit(128 + signal.SIGINT)


def _prepare_proposals(argv: list[str]) -> None:
  parser = arguments.Parser('cfn_jax.prepare proposals', _PROPOSALS)
  add = parser.add_argument
  add('--method', required=True, choices=prepare_proposals.METHODS, help='how')
  add('--root', action='place', default='', help='VOC folder, such as VOCdevkit/VOC2007')
  add('--split', default='', help='list of its images in ImageSets/Main, such as trainval')
  add('--images', action='place', default='', help='any folder of images, instead')
  add('--out', action='place', required=True, help='file to write, FILE.npz')
  add('--workers', dest='num_workers', type=int, default=0, help='processes; 0: one per core')
  flags = parser.parse(argv)
  counts = np.diff(prepare_proposals.prepare_proposals(**vars(flags)).starts)
  terminal.answer(
    f'{len(counts):,} images, {counts.mean():,.0f} boxes each on average, {counts.max():,} at '
    f'most, in {flags.out}'
  )


def _prepare_images(argv: list[str]) -> None:
  parser = arguments.Parser('cfn_jax.prepare', __doc__)
  add = parser.add_argument
  add('--source', action='place', required=True, help='folder of images, or tar file')
  add('--out', action='source', required=True, help='folder to write, or gs://BUCKET/PATH')
  add('--short-side', dest='short_side_px', type=int, default=256, help='px; 0 leaves sizes alone')
  add('--quality', type=int, default=95, help='of the JPEGs, 1..100')
  add('--shards', dest='num_shards', type=int, default=0, help='0: one per 256 images, up to 256')
  add('--workers', dest='num_workers', type=int, default=0, help='processes; 0: one per core')
  add('--upsample', action='store_true', help='resize smaller images too')
  add('--verify', action='store_true', help='check finished shards, make damaged ones again')
  add('--labels', action='place', default='', help='classes: a number per line, or name and wnid')
  add(
    '--synsets', action='place', default='', help='of those numbers: meta.mat, or a wnid per line'
  )
  flags = parser.parse(argv)
  with bucket_records.sending(flags.out, again=flags.verify) as out:
    index = prepare.prepare(**{**vars(flags), 'out': out})
  for line in index['skipped'][:_SHOWN]:
    terminal.answer(f'left out: {line["name"]}: {line["reason"]}')
  size = sum(shard['bytes'] for shard in index['shards'])
  terminal.answer(
    f'{index["num_records"]:,} images, {size / 1e6:,.1f} MB, {len(index["shards"])} shards in '
    f'{flags.out}; {index["num_skipped"]:,} files left out{listing.Others(**index["others"])}'
  )


if __name__ == '__main__':
  main()
