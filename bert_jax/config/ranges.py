"""The numbers that settings take."""

from typing import Annotated

from bert_jax.data_pipeline.settings import Within

# Upper limits are far beyond any real training run and below the values that overflow a counter
# (steps and positions are int32) or make a compiler abort instead of reporting out of memory.
INT32 = 2**31 - 1
BATCH_TOKENS = 2**26  # one host may have to build the entire batch; LAMB's largest has half
Count = Annotated[int, Within(1, INT32)]
Amount = Annotated[float, Within(0)]
Positive = Annotated[float, Within(0, without=(0,))]
Seconds = Annotated[float, Within(0, 10**8, without=(0,))]  # three years: must fit a timer
Vocabulary = Annotated[int, Within(1, 2**24)]
WIDTH, LAYERS, HEADS = 2**17, 1000, 2**12
Width = Annotated[int, Within(1, WIDTH)]
Layers = Annotated[int, Within(1, LAYERS)]
Heads = Annotated[int, Within(1, HEADS)]
Positions = Annotated[int, Within(1, 2**17)]
TokenTypes = Annotated[int, Within(0, 2**17)]
Rows = Annotated[int, Within(1, 2**20)]  # of a batch
Attempts = Annotated[int, Within(1, 20)]
Axis = Annotated[int, Within(-1, 2**20, without=(0,))]  # devices along it; -1 = the remaining
BelowOne = Annotated[float, Within(0, 1, without=(1,))]
