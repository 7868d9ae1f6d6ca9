#!/bin/sh
# Version: github.com/pkg/sftp v1.13.12 as client and as server; sftp-server of OpenSSH 9.2p1 (Debian 12) as the
# comparison.
#
# Guess: a file that is opened with os.O_APPEND is appended to. The SFTP flag for it makes the server write at the end,
# and a client and a server of one library agree about who does it.
#
# Behaviour: both leave it to the other. The client sends offsets from 0, because the flag tells the server to ignore
# them. The server ignores the flag, because clients send the offsets. So the new lines overwrite the start of the file,
# without an error. The same client appends at OpenSSH's server.
#
# Output seen:
#   sftp-server: "old line\nold line\nnew\n"
#   pkg/sftp: "new\nline\nold line\n"
#
# It needs apt-get with the lists of Debian 12.
set -eu
dir=$(mktemp -d)
trap 'rm -rf "$dir"' EXIT
chmod 755 "$dir"
cd "$dir"
apt-get -q -o APT::Sandbox::User=root download openssh-sftp-server=1:9.2p1-2+deb12u10 >/dev/null
dpkg-deb -x openssh-sftp-server_*.deb package
cat >go.mod <<'MOD'
module finding

go 1.26

require github.com/pkg/sftp v1.13.12
MOD
cat >main.go <<'GO'
package main

import (
	"fmt"
	"io"
	"os"
	"os/exec"

	"github.com/pkg/sftp"
)

func main() {
	server := exec.Command("package/usr/lib/openssh/sftp-server")
	in, err := server.StdinPipe()
	must(err)
	out, err := server.StdoutPipe()
	must(err)
	must(server.Start())
	appendTo("sftp-server", out, in)

	requests, toServer := io.Pipe()
	fromServer, answers := io.Pipe()
	own, err := sftp.NewServer(struct {
		io.Reader
		io.WriteCloser
	}{requests, answers})
	must(err)
	go own.Serve()
	appendTo("pkg/sftp", fromServer, toServer)
}

func appendTo(name string, r io.Reader, w io.WriteCloser) {
	client, err := sftp.NewClientPipe(r, w)
	must(err)
	must(os.WriteFile("log", []byte("old line\nold line\n"), 0o600))
	f, err := client.OpenFile("log", os.O_WRONLY|os.O_APPEND)
	must(err)
	_, err = f.Write([]byte("new\n"))
	must(err)
	must(f.Close())
	text, err := os.ReadFile("log")
	must(err)
	fmt.Printf("%s: %q\n", name, text)
}

func must(err error) {
	if err != nil {
		panic(err)
	}
}
GO
GOFLAGS=-mod=mod go run . >seen
cat seen
cat >want <<'WANT'
sftp-server: "old line\nold line\nnew\n"
pkg/sftp: "new\nline\nold line\n"
WANT
cmp seen want
