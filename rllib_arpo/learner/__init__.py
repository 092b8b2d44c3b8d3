"""The update of the policy: the plan of a batch, the learners, and the memory that they need."""
