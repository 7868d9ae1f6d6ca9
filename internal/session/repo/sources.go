package repo

import (
	"context"
	"strconv"
	"strings"

	"github.com/RelevanceAI/harvest/internal/session/container"
)

const (
	// blobScript prints the beginning of a file, and nothing if it does not exist: directory, path, bytes.
	blobScript = `cd "$1"; git cat-file blob ":$2" 2>/dev/null | head -c "$3"`
	// sumScript prints a digest of the names, modes and contents of files: directory, patterns.
	sumScript = `cd "$1"; shift; list=$(git ls-files -s -- "$@"); printf '%s\n' "$list" | git hash-object --stdin`
)

// addSources adds to the files that determine an image a digest of those that its dev container is built from: the
// Dockerfile, whatever its name, and the files that it copies.
func addSources(ctx context.Context, a *attempt, tree Tree, config string, locks map[string]string) error {
	from := container.SourcesOf(config, tree.Text[config])
	if from.Dockerfile == "" {
		return nil
	}
	text, err := a.script(ctx, a.box, command{text: blobScript, quiet: true,
		params: []string{a.repo.Dir, from.Dockerfile, strconv.Itoa(MaxText)}})
	if err != nil {
		return err
	}
	sum, err := a.script(ctx, a.box, command{text: sumScript, quiet: true,
		params: append([]string{a.repo.Dir}, from.Paths(string(text))...)})
	if err != nil {
		return err
	}
	locks[from.Dockerfile+" and its sources"] = strings.TrimSpace(string(sum))
	return nil
}
