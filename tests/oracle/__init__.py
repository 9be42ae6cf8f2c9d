"""The second opinion: what a pipeline must produce, worked out without penstock.

Oracles compute an expected result from plain input rows, in plain Python or in another SQL engine. They share no code
with what they judge: nothing here may import penstock (an import contract sees to it).
"""
