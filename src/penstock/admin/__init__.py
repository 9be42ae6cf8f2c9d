"""What a person does to a job from outside, running or dead: read its log, ask its owner, own it for a while."""
