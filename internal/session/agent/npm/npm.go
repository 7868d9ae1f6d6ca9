// Package npm installs agents from the npm registry, inside a sandbox.
package npm

import (
	"context"
	"fmt"
	"os"
	"os/exec"
	"strconv"
	"strings"
	"syscall"
	"time"

	"github.com/RelevanceAI/harvest/client/errors"
)

const (
	leastNode = 22
	// ImageNode is Node.js in the agent image. The image's command "node" is another one if the project asks for it.
	ImageNode = "/opt/harvest/bin/node"

	drain   = 2 * time.Second // for the output of a program that has ended
	maxSaid = 4 << 10         // bytes of output in an error
)

// Install runs an npm command that installs packages in dir; Fits must have returned nil. No scripts of packages run.
func Install(ctx context.Context, dir string, args ...string) error {
	err := Run(ctx, dir, "npm", append(args, "--ignore-scripts", "--no-audit", "--no-fund", "--loglevel=error",
		"--no-update-notifier")...)
	return errors.Remedy(err, "let the sandbox reach the npm registry, or use an image that has the agent")
}

// Fits returns an error unless Node.js is new enough.
func Fits(ctx context.Context) error {
	cmd := exec.CommandContext(ctx, Node(), "--version")
	cmd.Env = append(os.Environ(), "HARVEST_NODE=default")
	out, err := cmd.Output()
	version := strings.TrimPrefix(strings.TrimSpace(string(out)), "v")
	major, _, _ := strings.Cut(version, ".")
	if n, bad := strconv.Atoi(major); err == nil && bad == nil && n >= leastNode {
		return nil
	}
	found := "there is none"
	if err == nil {
		found = "this is " + version
	}
	return errors.Remedy(errors.Newf(errors.Invalid, "agents need Node.js %d or later, and %s", leastNode, found),
		"use an image that has it, such as agent")
}

// Node returns the Node.js for agents: that of the agent image, or the one in PATH.
func Node() string {
	if _, err := os.Stat(ImageNode); err == nil {
		return ImageNode
	}
	return "node"
}

// Run runs a program in a process group of its own; an error has the end of its output.
func Run(ctx context.Context, dir, name string, args ...string) error {
	var out ring
	cmd := exec.CommandContext(ctx, name, args...)
	cmd.Dir, cmd.Stdout, cmd.Stderr, cmd.WaitDelay = dir, &out, &out, drain
	cmd.Env = append(os.Environ(), "HARVEST_NODE=default")
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true, Pdeathsig: syscall.SIGKILL}
	cmd.Cancel = func() error { return syscall.Kill(-cmd.Process.Pid, syscall.SIGKILL) }
	if err := cmd.Run(); err != nil {
		said := strings.TrimSpace(fmt.Sprintf("%v: %s", err, out.String()))
		return errors.Explainf(errors.Errorf("%s: %v", name, err), errors.Unavailable,
			"the agent could not be installed: %s", said)
	}
	return nil
}

// ring keeps the end of a program's output.
type ring struct{ text []byte }

func (r *ring) Write(p []byte) (int, error) {
	r.text = append(r.text, p...)
	r.text = r.text[max(len(r.text)-maxSaid, 0):]
	return len(p), nil
}

func (r *ring) String() string { return strings.ToValidUTF8(string(r.text), "") }
