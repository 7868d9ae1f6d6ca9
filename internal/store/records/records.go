// Package records defines the records of Modal's protocol: the state that the next server must find. Each package under
// internal/modal encodes its own records; a Store keeps them.
package records

import "context"

// Kind is the type of the object that a record describes.
type Kind string

// The kinds. Unless its comment says otherwise, a record has the number 0.
const (
	App          Kind = "app"           // an app or a proxy
	DeletedImage Kind = "deleted_image" // the ID of a deleted image, which is not reused
	Environment  Kind = "environment"   // by its name
	Secret       Kind = "secret"        // an anonymous secret, sealed
	Queue        Kind = "queue"         // a queue, without its values
	QueueValue   Kind = "queue_value"   // a value; the number is the position in the queue
	QueueKey     Kind = "queue_key"     // the idempotency key of a put; the number is that of the value before it
	Journal      Kind = "journal"       // an event of a sandbox, by the sandbox's ID; numbered from 0
	VolumeName   Kind = "volume_name"   // the name of a renamed volume, by its ID
	View         Kind = "view"          // the last common state of a volume and a copy of it, by the copy's name
)

// ID identifies an object within its kind. The IDs of sandboxes and copies are unique without an account.
type ID struct{ Account, ID string }

// Record is a part of an object.
type Record struct {
	Kind Kind
	ID
	Number int64
	Data   []byte
}

// Store keeps records.
type Store interface {
	// Put adds records, and replaces those with the same kind, ID and number: all, or on an error none.
	Put(ctx context.Context, all ...Record) error
	// Get returns the records of an object, sorted by number.
	Get(ctx context.Context, kind Kind, id ID) ([]Record, error)
	// List returns the records of all objects of a kind, sorted by account, ID and number.
	List(ctx context.Context, kind Kind) ([]Record, error)
	// IDs returns the objects of a kind, sorted.
	IDs(ctx context.Context, kind Kind) ([]ID, error)
	// Delete removes the records of an object with these numbers, or all of them if there are no numbers. Missing
	// records are not an error.
	Delete(ctx context.Context, kind Kind, id ID, numbers ...int64) error
}
