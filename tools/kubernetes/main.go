// Command kubernetes builds the programs of a Kubernetes cluster, and runs a command beside a cluster of one node.
//
//	kubernetes build             builds the programs, which takes minutes the first time
//	kubernetes run COMMAND…      runs a command with HARVEST_TEST_KUBERNETES set to the directory of the programs
//	kubernetes cluster COMMAND…  runs a command beside a cluster: KUBECONFIG names its configuration, and
//	                             HARVEST_TEST_CONTAINERD the socket of its node's containerd
//	kubernetes clean             removes the leftovers of a cluster whose process was killed
package main

import (
	"context"
	"fmt"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"syscall"

	"github.com/RelevanceAI/harvest/client/errors"
	"github.com/RelevanceAI/harvest/tools/kubernetes/cluster"
)

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	if err := run(ctx, os.Args[1:]); err != nil {
		fmt.Fprintln(os.Stderr, "kubernetes:", err)
		os.Exit(1)
	}
}

func run(ctx context.Context, args []string) error {
	switch {
	case len(args) == 1 && args[0] == "build":
		dir, err := build(ctx)
		if err == nil {
			_, err = fmt.Fprintln(os.Stdout, dir)
		}
		return err
	case len(args) == 1 && args[0] == "clean":
		return cluster.Clean(ctx)
	case len(args) > 1 && args[0] == "run":
		dir, err := build(ctx)
		if err != nil {
			return err
		}
		return command(ctx, args[1:], "HARVEST_TEST_KUBERNETES="+dir)
	case len(args) > 1 && args[0] == "cluster":
		return beside(ctx, args[1:])
	default:
		return errors.Errorf("usage: kubernetes build | run COMMAND… | cluster COMMAND… | clean")
	}
}

// command runs a command with more environment variables.
func command(ctx context.Context, args []string, env ...string) error {
	cmd := exec.CommandContext(ctx, args[0], args[1:]...)
	cmd.Stdin, cmd.Stdout, cmd.Stderr = os.Stdin, os.Stdout, os.Stderr
	cmd.Env = append(os.Environ(), env...)
	return errors.Wrapf(cmd.Run(), "run %s", args[0])
}

// beside runs a command beside a cluster.
func beside(ctx context.Context, args []string) (err error) {
	programs, err := build(ctx)
	if err != nil {
		return err
	}
	temp, err := os.MkdirTemp("", "harvest-kubernetes-")
	if err != nil {
		return errors.Wrapf(err, "make a directory for the cluster")
	}
	defer func() { err = errors.Join(err, os.RemoveAll(temp)) }()
	c, err := cluster.Start(ctx, programs, filepath.Join(temp, "cluster"))
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, c.End(context.WithoutCancel(ctx))) }()
	return command(ctx, args, "HARVEST_TEST_KUBERNETES="+programs, "KUBECONFIG="+c.Kubeconfig,
		"HARVEST_TEST_CONTAINERD="+c.Socket())
}

// build builds the programs. The working directory is the root of the repository.
func build(ctx context.Context) (string, error) {
	parent, err := os.UserCacheDir()
	if err != nil {
		return "", errors.Wrapf(err, "find the cache directory")
	}
	return cluster.Build(ctx, filepath.Join("tools", "kubernetes", "programs"), filepath.Join(parent, "harvest-test"),
		os.Stderr)
}
