package proc

import (
	"os"
	"os/user"
	"strconv"
	"strings"

	"github.com/RelevanceAI/harvest/client/errors"
)

// identity is the user of a command.
type identity struct {
	UID, GID uint32
	Groups   []uint32
}

// resolve finds a user of the host by name or uid, either with ":group". nil means this process's own user.
func resolve(spec string) (*identity, error) {
	if spec == "" {
		return nil, nil
	}
	name, group, hasGroup := strings.Cut(spec, ":")
	id := &identity{}
	var known *user.User
	uid, err := parseID(name)
	if err == nil {
		known, _ = user.LookupId(name) // a number need not have an entry
		id.UID = uid
	} else {
		if known, err = user.Lookup(name); err != nil {
			return nil, errors.Remedy(errors.Newf(errors.Invalid, "there is no user %.100q", name),
				"use a user of the image, or a number")
		}
		if id.UID, err = parseID(known.Uid); err != nil {
			return nil, errors.Wrapf(err, "user %s", name)
		}
	}
	if known != nil {
		id.GID, _ = parseID(known.Gid)
		groups, _ := known.GroupIds()
		for _, g := range groups {
			if n, err := parseID(g); err == nil {
				id.Groups = append(id.Groups, n)
			}
		}
	}
	if hasGroup {
		if id.GID, err = resolveGroup(group); err != nil {
			return nil, err
		}
		id.Groups = nil
	}
	if os.Geteuid() == 0 {
		return id, nil
	}
	if int(id.UID) != os.Geteuid() {
		return nil, errors.Newf(errors.Unsupported, "commands run as the user of Harvest here, not as %.100q", spec)
	}
	return nil, nil
}

func resolveGroup(name string) (uint32, error) {
	if gid, err := parseID(name); err == nil {
		return gid, nil
	}
	g, err := user.LookupGroup(name)
	if err != nil {
		return 0, errors.Remedy(errors.Newf(errors.Invalid, "there is no group %.100q", name),
			"use a group of the image, or a number")
	}
	return parseID(g.Gid)
}

func parseID(text string) (uint32, error) {
	n, err := strconv.ParseUint(text, 10, 31)
	return uint32(n), err
}
