//go:build !linux

package main

// handOver fails: servers run on Linux only.
func (c *cli) handOver(bool) error { return errNoServer() }
