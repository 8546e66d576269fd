"""How the two sides of a test agree beside what they test: a JSON value a line, over TCP."""

import json
import sys


class Line:
    """One side's end of the connection."""

    def __init__(self, connection):
        self.file = connection.makefile("rw")

    def tell(self, value):
        """Sends a value."""
        self.file.write(json.dumps(value) + "\n")
        self.file.flush()

    def hear(self):
        """The other side's next value; ends the program if it is gone."""
        text = self.file.readline()
        if not text:
            sys.exit("the other side is gone")
        return json.loads(text)

    def ask(self, value):
        """Sends a value and waits for the answer."""
        self.tell(value)
        return self.hear()

    def wait_end(self):
        """Waits until the other side has closed the connection, by its death for example."""
        if self.file.readline():
            sys.exit("the other side speaks where it was to end")
