//go:build !linux

package main

// handOver fails: servers run on Linux only.
func (c commands) handOver(bool) error { return errNoServer() }
