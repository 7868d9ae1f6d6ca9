# Notes that the user has the work up to COMMIT.
cd "$DIR"
git update-ref refs/harvest/handed "$COMMIT"
