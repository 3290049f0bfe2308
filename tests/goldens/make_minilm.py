"""Write the vectors of sentence-transformers with which tests/convert/test_minilm.py compares.

cd tests && PYTHONPATH=support:. python -m goldens.make_minilm    # needs sentence-transformers
"""

import numpy as np
import sentence_transformers
import torch
import transformers
from minilm import GOLDEN, MODEL, SENTENCES
from sentence_transformers import SentenceTransformer

if __name__ == "__main__":
    vectors = SentenceTransformer(str(MODEL), device="cpu").encode(SENTENCES)
    libraries = (sentence_transformers, transformers, torch)
    versions = [f"{library.__name__} {library.__version__}" for library in libraries]
    np.savez_compressed(GOLDEN, vectors=vectors, versions=np.array(versions))
