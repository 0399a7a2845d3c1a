"""Errors that a user can fix: a command shows them in a few lines, without a traceback."""


class CfnError(ValueError):
  """An input that cannot be used, or a run that cannot continue: what, where, and the remedy.

  Each argument is a line of the message, since a name in it may contain line ends.
  """

  def __str__(self) -> str:
    return '\n'.join(map(str, self.args))
