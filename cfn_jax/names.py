"""Makes any text of a user safe to show: names of files, paths, values, messages of libraries.

A name may hold line ends, control characters, bytes that are no UTF-8 (lone surrogates), and
characters that a terminal or Matplotlib takes as marks. Each function is total: no text breaks it.
"""

import os
import unicodedata
import urllib.parse

_HIDDEN = ('Cc', 'Cf', 'Cn', 'Co', 'Cs', 'Zl', 'Zp')  # control, format, unassigned, line ends ...


def printable(text: object, *, encoding: str = 'utf-8') -> str:
  r"""Returns a text in one line; what cannot be shown is escaped.

  Args:
    encoding: of the output; characters that it lacks are escaped too.

  >>> printable('a\nb'), printable('caf\udce9'), printable('[b] :cat: 猫')
  ('a\\nb', 'caf\\udce9', '[b] :cat: 猫')
  >>> printable('é', encoding='ascii')
  '\\xe9'
  """
  shown = ''.join(map(_escape, str(text)))
  return shown.encode(encoding, 'backslashreplace').decode(encoding)


def drawable(text: object) -> str:
  r"""Returns a text that Matplotlib draws as it is: no dollar sign begins a formula.

  >>> drawable('price_$1_$x^{1'), drawable('caf\udce9')
  ('price_\\$1_\\$x^{1', 'caf\\udce9')
  """
  return printable(text).replace('$', r'\$')


def _escape(character: str) -> str:
  hidden = unicodedata.category(character) in _HIDDEN
  return character.encode('unicode_escape').decode() if hidden else character


def file_part(text: str) -> str:
  """Returns a part of a file's name for any text; what no such name should hold becomes %XX.

  >>> file_part('traffic light/red')
  'traffic%20light%2Fred'
  """
  return urllib.parse.quote(os.fsencode(text), safe='')
