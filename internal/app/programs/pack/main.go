// Command pack compresses a program for package programs: pack FROM TO.
package main

import (
	"fmt"
	"os"

	"github.com/klauspost/compress/zstd"

	"github.com/RelevanceAI/harvest/client/errors"
)

func main() {
	if len(os.Args) != 3 {
		fmt.Fprintln(os.Stderr, "usage: pack FROM TO")
		os.Exit(2)
	}
	if err := pack(os.Args[1], os.Args[2]); err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
}

func pack(from, to string) error {
	data, err := os.ReadFile(from)
	if err != nil {
		return errors.Wrapf(err, "read the program")
	}
	w, err := zstd.NewWriter(nil, zstd.WithEncoderLevel(zstd.SpeedDefault))
	if err != nil {
		return errors.Wrapf(err, "compress")
	}
	return errors.Wrapf(os.WriteFile(to, w.EncodeAll(data, nil), 0o644), "write %s", to)
}
