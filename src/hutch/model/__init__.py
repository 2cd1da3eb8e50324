"""What all layers speak: frozen, slotted, validated records with JSON both ways."""
