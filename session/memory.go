package session

import (
	"archive/tar"
	"context"
	"io"
	"path"

	"github.com/RelevanceAI/harvest/account"
	"github.com/RelevanceAI/harvest/errors"
	"github.com/RelevanceAI/harvest/git"
	"github.com/RelevanceAI/harvest/logf"
	"github.com/RelevanceAI/harvest/mcp"
	"github.com/RelevanceAI/harvest/memory"
	"github.com/RelevanceAI/harvest/session/workspace"
	"github.com/RelevanceAI/harvest/volume"
)

const (
	memoryMount = mcp.Home + "/.mcp-memory" // mount path of the memory volume; MCP's memory server has its file there
	seedFile    = "/app/memory-seed.json"   // in the image (mission E6)
	maxSeed     = 1 << 20                   // bytes
)

// memoryName returns the name of the memory of the session's first repository; "" if the session has none.
func (s Session) memoryName() string { return memoryOf(s.Repositories()[0]) }

func memoryOf(r workspace.Repository) string {
	if a, err := git.ParseAddress(r.URL); err == nil {
		return memory.Name(a.Host, a.Owner(), a.Name())
	}
	if name := path.Base(r.Dir); name != "work" {
		return memory.Name("", "local", name)
	}
	return ""
}

// memoryVolume returns the volume of the memory with this name; "" for none.
func memoryVolume(name string) string {
	if name == "" {
		return ""
	}
	return memory.Prefix + name
}

// seedMemory fills the memory with the image's seed, once.
func (p *preparation) seedMemory(ctx context.Context) error {
	if p.m.opts.Volumes == nil {
		return nil
	}
	store := memory.Store{Volumes: volume.Of(p.m.opts.Volumes, account.Owner(p.s.Account))}
	if done, err := store.Seeded(ctx, p.s.memoryName()); err != nil || done {
		return err
	}
	seed, err := p.readSeed(ctx)
	if err != nil || seed == nil {
		return err
	}
	if _, err := store.Seed(ctx, p.s.memoryName(), seed); err != nil {
		logf.Errorf(ctx, "seed the memory of session %s: %v", p.s.ID, err) // not fatal: the agent can work without it
	}
	return nil
}

// readSeed returns the image's seed; nil if it has none.
func (p *preparation) readSeed(ctx context.Context) ([]byte, error) {
	stream, err := p.m.opts.Fleet.CopyOut(ctx, p.s.Account, p.sandbox, seedFile)
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
