package oci

import (
	"cmp"
	"context"
	"os"
	"slices"
	"strings"
	"syscall"
	"time"

	"github.com/RelevanceAI/harvest/client/errors"
	"github.com/RelevanceAI/harvest/internal/base/filelock"
)

// kept is a file in the directory of the blobs.
type kept struct {
	of   *blobs
	name string
	used time.Time
	size int64 // on the disk
}

// list returns the files.
func (b *blobs) list() ([]kept, error) {
	entries, err := os.ReadDir(b.dir)
	if err != nil {
		return nil, err
	}
	var all []kept
	for _, e := range entries {
		info, err := e.Info()
		if err != nil || info.IsDir() { // renamed or removed meanwhile, or another account
			continue
		}
		k := kept{b, e.Name(), info.ModTime(), info.Size()}
		if st, ok := info.Sys().(*syscall.Stat_t); ok {
			k.size = st.Blocks * 512
		}
		all = append(all, k)
	}
	return all, nil
}

// Collect implements image.Cache. It keeps blobs that are being downloaded.
func (s *Source) Collect(ctx context.Context, before time.Time, size int64, dry bool) (freed, left int64, err error) {
	accounts, err := s.blobs.all()
	var all []kept
	for _, b := range accounts {
		some, e := b.list()
		all, err = append(all, some...), errors.Join(err, e)
	}
	if err != nil {
		return 0, 0, errors.Wrapf(err, "list the blobs")
	}
	for _, k := range all {
		left += k.size
	}
	slices.SortFunc(all, func(a, b kept) int { return cmp.Or(a.used.Compare(b.used), cmp.Compare(a.name, b.name)) })
	for _, k := range all {
		if ctx.Err() != nil {
			return freed, left, errors.Wrapf(context.Cause(ctx), "collect blobs")
		}
		if k.used.After(before) && (size < 0 || left <= size) {
			break
		}
		ok, err := k.of.remove(k.name, dry)
		if err != nil {
			return freed, left, errors.Wrapf(err, "remove a blob")
		}
		if ok {
			freed, left = freed+k.size, left-k.size
		}
	}
	return freed, left, nil
}

// remove removes a file unless a download is writing it. Readers have it open.
func (b *blobs) remove(name string, dry bool) (bool, error) {
	full := b.dir + "/" + name
	if strings.HasSuffix(name, partSuffix) {
		f, err := os.Open(full)
		if err != nil {
			return false, nil
		}
		lock, err := filelock.Exclusive(f)
		if err != nil {
			f.Close()
			return false, nil
		}
		defer lock.Close()
	}
	if dry {
		return true, nil
	}
	err := os.Remove(full)
	return err == nil, err
}
