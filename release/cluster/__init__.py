"""What `docs/cluster.md` uses: an image, Ray's and KubeRay's files, and the table of nodes."""
