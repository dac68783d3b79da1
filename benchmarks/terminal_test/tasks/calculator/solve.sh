cat >~/calc.py <<'P'
import re
import sys

sys.setrecursionlimit(20000)


class Parser:
    def __init__(self, text):
        if re.search(r"[^0-9+\-*/%^() ]", text):
            raise ValueError("unknown character")
        self.tokens = re.findall(r"[0-9]+|[^ ]", text)

    def peek(self):
        return self.tokens[0] if self.tokens else ""

    def value(self):
        result = self.sum()
        if self.tokens:
            raise ValueError(f"unexpected {self.peek()}")
        return result

    def sum(self):
        left = self.product()
        while self.peek() in ("+", "-"):
            sign = 1 if self.tokens.pop(0) == "+" else -1
            left += sign * self.product()
        return left

    def product(self):
        left = self.signed()
        while self.peek() in ("*", "/", "%"):
            operator, right = self.tokens.pop(0), self.signed()
            if operator == "*":
                left *= right
                continue
            quotient = abs(left) // abs(right) * (1 if (left < 0) == (right < 0) else -1)
            left = quotient if operator == "/" else left - quotient * right
        return left

    def signed(self):
        if self.peek() in ("+", "-"):
            return self.signed() if self.tokens.pop(0) == "+" else -self.signed()
        return self.power()

    def power(self):
        base = self.atom()
        if self.peek() != "^":
            return base
        self.tokens.pop(0)
        exponent = self.signed()
        if exponent < 0:
            raise ValueError("negative exponent")
        return base**exponent

    def atom(self):
        if not self.tokens:
            raise ValueError("unexpected end")
        token = self.tokens.pop(0)
        if token == "(":
            inner = self.sum()
            if self.peek() != ")":
                raise ValueError("missing )")
            self.tokens.pop(0)
            return inner
        if not token.isdigit():
            raise ValueError(f"unexpected {token}")
        return int(token)


try:
    print(Parser(sys.argv[1]).value())
except (ValueError, ZeroDivisionError) as error:
    sys.exit(f"calc: {error}")
P
