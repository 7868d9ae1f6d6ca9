package pod

import (
	"encoding/json"
	"io"

	"github.com/RelevanceAI/harvest/client/errors"
	"github.com/RelevanceAI/harvest/internal/engine/gvisor/wire"
	"github.com/RelevanceAI/harvest/internal/engine/gvisor/wire/mutual"
)

// Protocol is the version of what a server and a pod say to one another. It changes when they no longer understand one
// another.
const Protocol = 1

// Greeting is a line of the server on the pod's standard input. It gives the pod its identity, or renews it.
type Greeting struct {
	Protocol    int
	Credentials mutual.Credentials
}

// answer is the pod's line on its standard output, for each Greeting. Others may read it: it is in the pod's log.
type answer struct {
	Protocol int
	Address  string        `json:",omitempty"` // at which the pod listens
	Failure  *wire.Failure `json:",omitempty"`
}

// Greet writes a Greeting to the pod's standard input w, and reads the answer from its standard output r.
func Greet(w io.Writer, r io.Reader, c mutual.Credentials) error {
	if err := json.NewEncoder(w).Encode(Greeting{Protocol: Protocol, Credentials: c}); err != nil {
		return errors.Explainf(err, errors.Unavailable, "the pod does not read its input")
	}
	var a answer
	if err := json.NewDecoder(r).Decode(&a); err != nil {
		return errors.Explainf(err, errors.Unavailable, "the pod gave no answer")
	}
	if a.Protocol != Protocol {
		err := errors.Newf(errors.Unsupported,
			"the pod's image is of another version of Harvest: it speaks protocol %d, "+
				"and this server %d", a.Protocol, Protocol)
		return errors.Remedy(err, "make the image with the version of this server: make image")
	}
	if a.Failure != nil {
		return a.Failure.Err()
	}
	return nil
}

// Greetings reads Greetings from r until its end. It calls identify for each of them, and writes the answers to w.
// identify returns the address of the pod.
func Greetings(r io.Reader, w io.Writer, identify func(mutual.Credentials) (address string, err error)) error {
	in, out := json.NewDecoder(r), json.NewEncoder(w)
	for {
		var g Greeting
		err := in.Decode(&g)
		if err == io.EOF {
			return nil
		}
		if err != nil {
			return errors.Wrapf(err, "read a greeting of the server")
		}
		a := answer{Protocol: Protocol}
		if g.Protocol == Protocol { // otherwise the server refuses the answer
			if a.Address, err = identify(g.Credentials); err != nil {
				failure := wire.FailureOf(err)
				a.Failure = &failure
			}
		}
		if err := out.Encode(a); err != nil {
			return errors.Wrapf(err, "answer a greeting of the server")
		}
	}
}
