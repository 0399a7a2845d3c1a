"""What a user can mend: each command ends with these errors in a few lines, without a traceback."""


class CfnError(ValueError):
  """An input that cannot be used, or a run that cannot continue: what, where, and what helps.

  Each argument is a line of the message: a name in it may hold line ends.
  """

  def __str__(self) -> str:
    return '\n'.join(map(str, self.args))
