package store

import "github.com/RelevanceAI/harvest/internal/base/dirlock"

// Lock is the exclusive right of a process to a data directory.
type Lock = dirlock.Lock

// LockDir locks a data directory, as dirlock.Take does.
func LockDir(dir string) (*Lock, error) { return dirlock.Take(dir) }
