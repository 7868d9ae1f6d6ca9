package volume

import (
	"github.com/RelevanceAI/harvest/client/errors"
)

// SetQuota limits how many volumes one owner can have; 0 means no limit. Existing volumes stay, also
// those beyond the limit.
func (l *Local) SetQuota(volumes int) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.quota = volumes
}

// checkQuota returns Exhausted if the owner of the volume that is stored as name cannot have another
// one. l.creating is held.
func (l *Local) checkQuota(name string) error {
	l.mu.Lock()
	quota := l.quota
	l.mu.Unlock()
	if quota <= 0 || l.find(name) == nil { // a concurrent call has just created it
		return nil
	}
	names, err := readNames(l.root, ".")
	if err != nil {
		return errors.Wrapf(err, "count volumes")
	}
	owner, n := ownerOf(name), 0
	for _, other := range names {
		if CheckStored(other) == nil && ownerOf(other) == owner {
			n++
		}
	}
	if n < quota {
		return nil
	}
	err = errors.Newf(errors.Exhausted, "volume %q: the account has %d volumes and may have %d", shown(name), n, quota)
	return errors.Remedy(err, "delete volumes that are no longer needed, or have the operator raise quotas.volumes")
}
