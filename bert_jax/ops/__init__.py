"""Operations with a form or a gradient of their own; pure functions of arrays."""
