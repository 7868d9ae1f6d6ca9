//go:build !(amd64 || arm64) || clientonly

package main

import (
	"os"
	"path/filepath"
	"syscall"

	"github.com/RelevanceAI/harvest/cmd/harvest/inner"
	"github.com/RelevanceAI/harvest/errors"
)

// canServe returns an error if this program has no server, without a look at the data directory.
func canServe() error {
	if !inner.HasServer() {
		return errNoServer()
	}
	return nil
}

// serverProgram unpacks the server into the data directory, and returns its path.
func serverProgram(data string) (string, error) {
	if err := canServe(); err != nil {
		return "", err
	}
	dir := filepath.Join(data, "bin")
	program, err := inner.Server(dir)
	if err == nil && program == "" {
		err = errors.Remedy(errors.Newf(errors.Denied, "no program can be started in %s, and the server is one", dir),
			"choose with --data a directory on a file system without the option noexec")
	}
	return program, err
}

// handOver replaces this process with the server's program, which runs the same command line.
func (c *cli) handOver() error {
	cfg, err := c.config()
	if err != nil {
		return err
	}
	program, err := serverProgram(cfg.Data)
	if err != nil {
		return err
	}
	return errors.Wrapf(syscall.Exec(program, os.Args, c.environ), "start the server's program")
}
