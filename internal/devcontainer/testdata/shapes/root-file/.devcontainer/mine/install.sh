#!/bin/sh
set -e
echo "installing mine"
