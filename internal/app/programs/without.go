//go:build !keeper || clientonly

package inner

var packedKeeper, packedSentry, packedTools, packedS3 []byte
