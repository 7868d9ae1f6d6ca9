package volumes

import (
	"archive/tar"
	"context"
	"io"

	"github.com/RelevanceAI/harvest/client/errors"
	"github.com/RelevanceAI/harvest/internal/base/account"
	"github.com/RelevanceAI/harvest/internal/base/logf"
	"github.com/RelevanceAI/harvest/internal/base/mcp"
	"github.com/RelevanceAI/harvest/internal/engine/volume"
	"github.com/RelevanceAI/harvest/internal/session/git"
	"github.com/RelevanceAI/harvest/internal/session/memory"
	"github.com/RelevanceAI/harvest/internal/session/memory/names"
	"github.com/RelevanceAI/harvest/internal/session/shell"
	"github.com/RelevanceAI/harvest/internal/session/workspace"
)

const (
	MemoryMount = mcp.Home + "/.mcp-memory" // mount path of the memory volume; MCP's memory server has its file there
	seedFile    = "/app/memory-seed.json"   // in the image
	maxSeed     = 1 << 20                   // bytes
)

// Memory returns the name of the memory of a session's first repository; "" if it has none.
func Memory(r workspace.Repository) string {
	if a, err := git.ParseAddress(r.URL); err == nil {
		return names.Of(a.Host, a.Owner(), a.Name())
	}
	if name := r.Name(); name != "work" || r.Identity != "" {
		return names.Local(name, r.Identity)
	}
	return ""
}

// memoryVolume returns the volume of the memory with this name.
func memoryVolume(name string) string { return memory.Prefix + name }

// Seed fills the memory of a session with the seed of the sandbox's image, once.
func Seed(ctx context.Context, volumes volume.Provider, box shell.Sandbox, session, name string) error {
	if volumes == nil {
		return nil
	}
	store := memory.Store{Volumes: volume.Of(volumes, account.Owner(box.Account))}
	if done, err := store.Seeded(ctx, name); err != nil || done {
		return err
	}
	seed, err := readSeed(ctx, box)
	if err != nil || seed == nil {
		return err
	}
	if _, err := store.Seed(ctx, name, seed); err != nil {
		logf.Errorf(ctx, "seed the memory of session %s: %v", session, err) // not fatal: the agent can work without it
	}
	return nil
}

// readSeed returns the image's seed; nil if it has none.
func readSeed(ctx context.Context, box shell.Sandbox) ([]byte, error) {
	stream, err := box.Fleet.CopyOut(ctx, box.Account, box.ID, seedFile)
	if errors.KindOf(err) == errors.NotFound {
		return nil, nil
	}
	if err != nil {
		return nil, errors.Wrapf(err, "read %s", seedFile)
	}
	defer stream.Close()
	archive := tar.NewReader(stream)
	if h, err := archive.Next(); err != nil || h.Typeflag != tar.TypeReg {
		return nil, nil // not a regular file: no seed
	}
	text, err := io.ReadAll(io.LimitReader(archive, maxSeed))
	return text, errors.Wrapf(err, "read %s", seedFile)
}
