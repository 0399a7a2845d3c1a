"""Makes any user text safe to show: file names, paths, values, messages of libraries.

A name may contain line ends, control characters, bytes that are not UTF-8 (lone surrogates), and
characters that a terminal or Matplotlib interprets. Each function accepts every text.
"""

import os
import unicodedata
import urllib.parse

_HIDDEN = ('Cc', 'Cf', 'Cn', 'Co', 'Cs', 'Zl', 'Zp')  # control, format, unassigned, line ends ...


def printable(text: object, *, encoding: str = 'utf-8') -> str:
  r"""Returns a text in one line, with escapes for characters that cannot be shown.

  Args:
    encoding: the encoding of the output; characters that it lacks are escaped too.

  >>> printable('a\nb'), printable('caf\udce9'), printable('[b] :cat: 猫')
  ('a\\nb', 'caf\\udce9', '[b] :cat: 猫')
  >>> printable('é', encoding='ascii')
  '\\xe9'
  """
  shown = ''.join(map(_escape, str(text)))
  return shown.encode(encoding, 'backslashreplace').decode(encoding)


def drawable(text: object) -> str:
  r"""Returns a text that Matplotlib draws literally: no dollar sign begins a formula.

  >>> drawable('price_$1_$x^{1'), drawable('caf\udce9')
  ('price_\\$1_\\$x^{1', 'caf\\udce9')
  """
  return printable(text).replace('$', r'\$')


def shorten(text: str, longest: int) -> str:
  """Returns the end of a text that is longer than `longest` characters, after three dots.

  >>> shorten('animals/dogs/1.jpg', 11), shorten('1.jpg', 11)
  ('...gs/1.jpg', '1.jpg')
  """
  return text if len(text) <= longest else '...' + text[3 - longest :]


def _escape(character: str) -> str:
  hidden = unicodedata.category(character) in _HIDDEN
  return character.encode('unicode_escape').decode() if hidden else character


def file_part(text: str) -> str:
  """Returns a part of a file name for any text; characters that do not belong there become %XX.

  >>> file_part('traffic light/red')
  'traffic%20light%2Fred'
  """
  return urllib.parse.quote(os.fsencode(text), safe='')
