package main

import (
	"fmt"
	"math/rand/v2"
	"os"
	"path/filepath"
	"syscall"

	"golang.org/x/sys/unix"

	"github.com/RelevanceAI/harvest/client/errors"
)

func free(dir string) int64 {
	var st syscall.Statfs_t
	if syscall.Statfs(dir, &st) != nil {
		return 0
	}
	return int64(st.Bavail) * st.Bsize
}

// settleDisk flushes the file system of a directory.
func settleDisk(dir string) error {
	f, err := os.Open(dir)
	if err != nil {
		return err
	}
	return errors.Join(unix.Syncfs(int(f.Fd())), f.Close())
}

// plant creates a tree of n files: three of four are below 4 KiB, few are up to 1 MiB, and the mean is about 15
// KiB.
func plant(dir string, n int) error {
	random := rand.New(rand.NewPCG(9, 9))
	chunk := make([]byte, 1<<20)
	for i := range chunk {
		chunk[i] = byte(random.Uint32())
	}
	for i := range n {
		at := filepath.Join(dir, fmt.Sprintf("d%02d/e%02d", i%syncDirs%40, i%syncDirs/40), fmt.Sprintf("file%05d", i))
		if err := os.MkdirAll(filepath.Dir(at), 0o755); err != nil {
			return err
		}
		size := 16 + random.IntN(4<<10)
		switch {
		case i%150 == 0:
			size = 256<<10 + random.IntN(768<<10)
		case i%4 == 0:
			size = 4<<10 + random.IntN(60<<10)
		}
		if err := os.WriteFile(at, chunk[:size], 0o644); err != nil {
			return err
		}
	}
	return nil
}

// fill creates a directory with one file without holes.
func fill(dir string, size int64) (err error) {
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return err
	}
	f, err := os.Create(filepath.Join(dir, "large"))
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, f.Close()) }()
	source := rand.NewChaCha8([32]byte{9})
	chunk := make([]byte, 1<<20)
	for at := int64(0); at < size; at += int64(len(chunk)) {
		_, _ = source.Read(chunk)
		if _, err := f.Write(chunk); err != nil {
			return err
		}
	}
	return nil
}

// empty truncates all files of a tree but keeps them: ext4 creates files slowly where many were just removed.
func empty(dir string) error {
	return filepath.WalkDir(dir, func(path string, d os.DirEntry, err error) error {
		if err != nil || !d.Type().IsRegular() {
			return err
		}
		return os.Truncate(path, 0)
	})
}

// sameSize fails unless both trees have the same number of files and bytes.
func sameSize(a, b string) error {
	count := func(dir string) (files, size int64, err error) {
		err = filepath.WalkDir(dir, func(_ string, d os.DirEntry, err error) error {
			if err != nil || !d.Type().IsRegular() {
				return err
			}
			info, err := d.Info()
			if err == nil {
				files, size = files+1, size+info.Size()
			}
			return err
		})
		return files, size, err
	}
	af, as, aerr := count(a)
	bf, bs, berr := count(b)
	if err := errors.Join(aerr, berr); err != nil {
		return err
	}
	if af != bf || as != bs {
		return errors.Errorf("%d files of %d bytes came back, not %d of %d", bf, bs, af, as)
	}
	return nil
}
