package main

import (
	"bytes"
	"context"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"

	"github.com/RelevanceAI/harvest/client/errors"
)

const (
	copiedFiles = 1000
	tarTar      = "tar | tar"      // between two directories of the host; for comparison only, as it has no sandbox
	tarExec     = "tar | exec tar" // the peer of the aim: one tar in the sandbox, the usual way to copy without cp
	copyIn      = "1,000 files in"
	copyOut     = "1,000 files out"
	copyOne     = "one file in"
)

// benchCopy measures whole commands, including the start of the command line: harvest sandbox cp and tar. Decision 37
// says why the aim's peer has one tar in the sandbox.
func benchCopy(ctx context.Context, l *lab, r *recorder) error {
	tree := filepath.Join(l.dir, "copied")
	if err := makeCopied(tree); err != nil {
		return errors.Wrapf(err, "make the files to copy")
	}
	return withSandbox(ctx, l, "copy", func(_ *daemon, data, sb string) error {
		return r.copies(ctx, l, tree, data, sb)
	})
}

func (r *recorder) copies(ctx context.Context, l *lab, tree, data, sb string) error {
	turn := 0
	target := func() string {
		turn++
		return "t" + strconv.Itoa(turn)
	}
	in, out, one := r.measure(copyIn, "ms"), r.measure(copyOut, "ms"), r.measure(copyOne, "ms")
	in.Aim, out.Aim = &Aim{Peer: tarExec, AtMost: 2}, &Aim{Peer: tarExec, AtMost: 2}
	cp := func(ctx context.Context, from, to string) error {
		return whole(ctx, l.opts.harvest, "--data", data, "sandbox", "cp", from, to)
	}
	const script = `mkdir "$2" && tar -C "$1" -c . | tar -C "$2" -x`
	exec := strconv.Quote(l.opts.harvest) + " --data " + strconv.Quote(data) + " sandbox exec " + sb + " -- "
	return r.turns(ctx, r.count(2, 10), []*Measure{in, out, one},
		side{harvest, func(ctx context.Context) (sample, error) {
			inside, outside := sb+":/srv/"+target(), filepath.Join(l.dir, target())
			return copySample(func() error { return cp(ctx, tree, inside) },
				func() error { return cp(ctx, inside, outside) },
				func() error { return cp(ctx, filepath.Join(tree, "d0", "f0"), inside+".one") })
		}},
		side{tarTar, func(ctx context.Context) (sample, error) {
			to, from := filepath.Join(l.dir, target()), filepath.Join(l.dir, target())
			return copySample(func() error { return whole(ctx, "sh", "-c", script, "sh", tree, to) },
				func() error { return whole(ctx, "sh", "-c", script, "sh", to, from) },
				func() error { return whole(ctx, "cp", filepath.Join(tree, "d0", "f0"), to) })
		}},
		side{tarExec, func(ctx context.Context) (sample, error) {
			inside, outside := "/srv/"+target(), filepath.Join(l.dir, target())
			return copySample(func() error {
				return whole(ctx, "sh", "-c",
					`tar -C "$1" -c . | `+exec+`sh -c 'mkdir "$1"; tar -C "$1" -x' sh "$2"`, "sh", tree, inside)
			},
				func() error {
					return whole(ctx, "sh", "-c", `mkdir "$2" && `+exec+`tar -C "$1" -c . | tar -C "$2" -x`, "sh",
						inside, outside)
				},
				func() error {
					return whole(ctx, "sh", "-c", exec+`sh -c 'cat >"$1"' sh "$2" <"$1"`, "sh",
						filepath.Join(tree, "d0", "f0"), inside+".one")
				})
		}})
}

// copySample measures the commands of one turn.
func copySample(in, out, one func() error) (sample, error) {
	all := sample{}
	for _, step := range []struct {
		name string
		run  func() error
	}{{copyIn, in}, {copyOut, out}, {copyOne, one}} {
		s, err := timed(step.name, step.run)
		if err != nil {
			return nil, err
		}
		all[step.name] = s[step.name]
	}
	return all, nil
}

// makeCopied creates the files, of 4 KiB each, in ten directories.
func makeCopied(dir string) error {
	text := bytes.Repeat([]byte("0123456789abcdef"), 256)
	for i := range copiedFiles {
		name := filepath.Join(dir, "d"+strconv.Itoa(i%10), "f"+strconv.Itoa(i))
		if err := errors.Join(os.MkdirAll(filepath.Dir(name), 0o755), os.WriteFile(name, text, 0o644)); err != nil {
			return errors.Wrapf(err, "make files to copy")
		}
	}
	return nil
}

// whole runs a program that must succeed.
func whole(ctx context.Context, name string, args ...string) error {
	if out, err := exec.CommandContext(ctx, name, args...).CombinedOutput(); err != nil {
		return errors.Wrapf(err, "%s: %s", name, bytes.TrimSpace(out))
	}
	return nil
}
