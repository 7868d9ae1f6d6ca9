//go:build !(amd64 || arm64) || clientonly

package main

import (
	"os"
	"path/filepath"
	"syscall"

	"golang.org/x/sys/unix"

	"github.com/RelevanceAI/harvest/client/errors"
	"github.com/RelevanceAI/harvest/internal/app/programs"
)

// canServe returns an error if this program has no server, without a look at the data directory.
func canServe() error {
	if !programs.HasServer() {
		return errNoServer()
	}
	return nil
}

// serverProgram unpacks the server into the data directory, and returns its path.
func serverProgram(data string) (string, error) {
	if err := canServe(); err != nil {
		return "", err
	}
	if err := os.MkdirAll(data, 0o700); err != nil {
		return "", dataError(err, data)
	}
	program, err := programs.Server(binDir(data))
	if err == nil && program == "" {
		err = errors.Remedy(errors.Newf(errors.Denied, "data directory %s: programs cannot be started from it", data),
			"use a data directory on a file system that is mounted without noexec")
	}
	return program, err
}

// binDir is the directory for the server, in a data directory.
func binDir(data string) string { return filepath.Join(data, "bin") }

// handOver replaces this process with the server's program, which runs the same command line. A server stays in
// the data directory. Other commands create no data directory: their program is in memory if there is none.
func (c commands) handOver(stays bool) error {
	cfg, err := c.Config()
	if err != nil {
		return err
	}
	if !stays && unix.Access(binDir(cfg.Data), unix.W_OK) != nil {
		return c.handOverInMemory()
	}
	program, err := serverProgram(cfg.Data)
	if err != nil {
		return err
	}
	return errors.Wrapf(syscall.Exec(program, os.Args, c.Environ), "start the server's program")
}

func (c commands) handOverInMemory() error {
	if err := canServe(); err != nil {
		return err
	}
	program, err := programs.ServerInMemory()
	if err != nil {
		return err
	}
	defer program.Close()
	return errors.Wrapf(syscall.Exec(program.Name(), os.Args, c.Environ), "start the server's program")
}
