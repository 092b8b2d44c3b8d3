"""The algorithm as pure functions: trees, branching, credit, packing and the loss, without Ray and without vLLM."""
