package modal

import (
	"crypto/sha256"
	"encoding/base64"
	"encoding/hex"
	"strings"

	"github.com/oklog/ulid/v2"

	"github.com/RelevanceAI/harvest/client/errors"
	"github.com/RelevanceAI/harvest/internal/base/pattern"
	"github.com/RelevanceAI/harvest/internal/modal/volumeids"
)

// Modal's identifiers are derived from Harvest's, so that both name the same object and no mapping has to be stored.
// SDKs recognize the generation of a sandbox by the shape of its ID: an ID other than "sb-" and 22 letters and digits
// is of the second one.
const (
	boxPrefix    = "sbx_"
	sandboxID    = "sb-"
	taskID       = "ta-"
	taskEnd      = "V" // marks tasks of the second generation for the Python SDK
	containerID  = "ct-"
	appID        = "ap-"
	imageID      = "im-"
	secretID     = "st-"
	volumeID     = "vo-"
	queueID      = "qu-"
	dictID       = "di-"
	envID        = "en-"
	proxyID      = "pr-"
	nameMark     = "n" // the rest is a name, not random
	looseMark    = "x"
	ulidLength   = 26
	mainSandbox  = "main"
	mainEnvName  = "main"
	longestField = 256
)

func missing(what, id string) error {
	return errors.Newf(errors.NotFound, "%s '%.100s' not found", what, id)
}

func ulidOf(box string) string { return strings.ToUpper(strings.TrimPrefix(box, boxPrefix)) }

func sandboxOf(box string) string { return sandboxID + ulidOf(box) }
func taskOf(box string) string    { return taskID + ulidOf(box) + taskEnd }

// boxOf is the inverse of the three: it returns the id of a sandbox of the Fleet.
func boxOf(id, prefix string) (string, error) {
	rest, ok := strings.CutPrefix(id, prefix)
	switch prefix {
	case taskID:
		if len(rest) > ulidLength { // the ULID may end so, too
			rest = strings.TrimSuffix(rest, taskEnd)
		}
	case sandboxID:
		rest = fromFirstForm(rest)
	}
	what := map[string]string{sandboxID: "Sandbox", taskID: "Task", containerID: "Container"}[prefix]
	if _, err := ulid.ParseStrict(rest); !ok || err != nil || len(rest) != ulidLength {
		return "", missing(what, id)
	}
	return boxPrefix + strings.ToLower(rest), nil
}

// Harvest's ids of sandboxes and images, in texts.
var (
	boxInText   = pattern.New(`\bsbx_[0-9a-hjkmnp-tv-z]{26}\b`)
	imageInText = pattern.New(`\bimg_[0-9a-f]{16}\b`)
)

// inModalsIDs returns a text for clients, with Modal's IDs in place of Harvest's.
func inModalsIDs(text string) string {
	return imageInText().ReplaceAllStringFunc(boxInText().ReplaceAllStringFunc(text, sandboxOf), plainImage)
}

// named returns the ID of a named object.
func named(prefix, name string) string {
	return prefix + nameMark + base64.RawURLEncoding.EncodeToString([]byte(name))
}

// nameOf is the inverse of named.
func nameOf(id, prefix, what string) (string, error) {
	rest, ok := strings.CutPrefix(id, prefix+nameMark)
	name, err := base64.RawURLEncoding.DecodeString(rest)
	if !ok || err != nil || len(name) == 0 || len(name) > longestField {
		return "", missing(what, id)
	}
	return string(name), nil
}

// volumeNames derives the IDs of volumes.
var volumeNames = volumeids.Derivation{
	ID:    func(name string) string { return named(volumeID, name) },
	Name:  func(id string) (string, error) { return nameOf(id, volumeID, "Volume") },
	Fresh: func(random string) string { return volumeID + looseMark + random },
}

// imageName returns the library's name of the image with a client's ID.
func imageName(id string) (string, error) {
	rest, ok := strings.CutPrefix(id, imageID)
	if !ok || len(rest) != 2*imageBytes {
		return "", missing("Image", id)
	}
	if _, err := hex.DecodeString(rest); err != nil {
		return "", missing("Image", id)
	}
	return imagePrefix + id, nil
}

const (
	imagePrefix = "modal/"
	imageBytes  = 12
	endDigits   = 8 // the last digits of an image's ID: its expiry, in hex seconds since 1970; 0 for never
)

// digestID derives an ID from the parts of an image, so that equal requests have equal answers.
func digestID(prefix string, parts ...string) string {
	h := sha256.New()
	for _, p := range parts {
		h.Write([]byte(p))
		h.Write([]byte{0})
	}
	return prefix + hex.EncodeToString(h.Sum(nil)[:imageBytes-endDigits/2]) + strings.Repeat("0", endDigits)
}

// plainImage is the ID of an image that was not made with this protocol.
func plainImage(img string) string {
	return imageID + strings.TrimPrefix(img, "img_") + strings.Repeat("0", endDigits)
}

// scoped returns the account-wide name of an object of an environment. An object of "main" or of no environment
// keeps its own name.
func scoped(env, name string) string {
	if env == "" || env == mainEnvName {
		return name
	}
	return env + "." + name
}
