"""Measures the product from outside: real executables in directories of their own, asked over HTTP.

`__main__` picks the figures, `figures` measures them, `cluster` starts what is measured, `load` drives it, and
`results` keeps what came out. Only the standard library is needed.
"""
