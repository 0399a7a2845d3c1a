"""Resizes images once and packs them into ArrayRecord shards for fast training.

    python -m cfn_jax.prepare --source=DIR --out=DIR2 [--short-side=256 --quality=95 --shards=N]

`--source` may be a folder or a tar file (a tar of tars too). Images that lie in no class folders
get their classes from `--labels`; see docs/data.md. Then train with `data.source = 'records'` and
`data.root = DIR2`.
"""

import signal
import sys

from cfn_jax import arguments, terminal
from cfn_jax.data import listing, prepare

# At the end this many of the files left out are printed; `index.json` has them all.
_SHOWN = 5


@terminal.short_errors()
def main(argv: list[str] | None = None) -> None:
  """Runs the command."""
  parser = arguments.Parser('cfn_jax.prepare', __doc__)
  add = parser.add_argument
  add('--source', action='place', required=True, help='folder of images, or tar file')
  add('--out', action='place', required=True, help='folder to write')
  add('--short-side', dest='short_side_px', type=int, default=256, help='px; 0 leaves sizes alone')
  add('--quality', type=int, default=95, help='of the JPEGs, 1..100')
  add('--shards', dest='num_shards', type=int, default=0, help='0: one per 256 images, up to 256')
  add('--workers', dest='num_workers', type=int, default=0, help='processes; 0: one per core')
  add('--upsample', action='store_true', help='resize smaller images too')
  add('--verify', action='store_true', help='check finished shards, make damaged ones again')
  add('--labels', action='place', default='', help='classes: a number a line, or name and wnid')
  add('--synsets', action='place', default='', help='of those numbers: meta.mat, or a wnid a line')
  flags = parser.parse(argv)
  try:
    index = prepare.prepare(**vars(flags))
  except KeyboardInterrupt:
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # a second one would only disturb the end
    terminal.say('prepare: interrupted; the same command resumes with the next shard')
    sys.exit(128 + signal.SIGINT)
  for line in index['skipped'][:_SHOWN]:
    terminal.answer(f'left out: {line["name"]}: {line["reason"]}')
  size = sum(shard['bytes'] for shard in index['shards'])
  terminal.answer(
    f'{index["num_records"]:,} images, {size / 1e6:,.1f} MB, {len(index["shards"])} shards in '
    f'{flags.out}; {index["num_skipped"]:,} files left out{listing.Others(**index["others"])}'
  )


if __name__ == '__main__':
  main()
