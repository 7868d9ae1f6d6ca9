package main

import (
	"bytes"
	"io"
	"io/fs"
	"os"
	"path/filepath"

	"github.com/RelevanceAI/harvest/client/errors"
)

// compare fails if the files of two directories differ. The error names each of them.
func compare(one, two string) error {
	if one == "" || two == "" {
		return errors.Errorf("usage: release compare DIR DIR")
	}
	seen := map[string]bool{}
	var found error
	for _, top := range []string{one, two} {
		err := filepath.WalkDir(top, func(path string, d fs.DirEntry, err error) error {
			if err != nil || d.IsDir() {
				return err
			}
			name, err := filepath.Rel(top, path)
			if err != nil || seen[name] {
				return err
			}
			seen[name] = true
			err = same(filepath.Join(one, name), filepath.Join(two, name))
			found = errors.Join(found, errors.Wrapf(err, "%s", name))
			return nil
		})
		if err != nil {
			return errors.Wrapf(err, "compare")
		}
	}
	if len(seen) == 0 {
		return errors.Errorf("directories %s and %s are empty", one, two)
	}
	return found
}

// same returns an error with the place of the first difference of two files.
func same(one, two string) error {
	a, err := os.Open(one)
	if err != nil {
		return err
	}
	defer a.Close()
	b, err := os.Open(two)
	if err != nil {
		return err
	}
	defer b.Close()
	if left, err := a.Stat(); err != nil {
		return err
	} else if right, err := b.Stat(); err != nil {
		return err
	} else if left.Size() != right.Size() {
		return errors.Errorf("the files have different lengths: %d and %d", left.Size(), right.Size())
	}
	x, y := make([]byte, 1<<12), make([]byte, 1<<12)
	for offset := 0; ; {
		n, err := io.ReadFull(a, x)
		m, other := io.ReadFull(b, y)
		if !bytes.Equal(x[:n], y[:m]) {
			return errors.Errorf("the files differ after byte %d", offset)
		}
		if err != nil || other != nil {
			return unlessEnd(err, other)
		}
		offset += n
	}
}

// unlessEnd returns the errors of two reads that are not the end of the files.
func unlessEnd(errs ...error) error {
	for _, err := range errs {
		if err != nil && err != io.EOF && err != io.ErrUnexpectedEOF {
			return err
		}
	}
	return nil
}
